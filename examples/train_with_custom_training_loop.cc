// Runs a custom training loop on a cluster in this process: three workers, two parameter servers.
// The workers read ships from CSV files and turn the words of their cargo into numbers.
#include <stdlib.h>
#include <torch/torch.h>
#include <trireme/trireme.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "examples/training_loop.h"

namespace tr = trireme;

// Writes files with 200 ships each into the folder.
void write_ships(const std::string& folder, int files) {
  for (int file = 0; file < files; ++file) {
    std::ofstream out(folder + "/ships-" + std::to_string(file) + ".csv");
    out << "first,second,third,of_war\n";
    for (const Ship& ship : ships(200, file)) {
      for (const std::string& thing : ship.cargo) out << thing << ',';
      out << ship.of_war << '\n';
    }
  }
}

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv,
                        tr::Usage{.about = "Trains with a training loop of its own on CSV files."});
  tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) {
    return tr::Server(me, {.data_root = std::filesystem::temp_directory_path()}).join();
  }
  std::optional<tr::InProcessCluster> local;  // without a cluster: a small one in this process
  if (me.is_local())
    me.spec = local.emplace(tr::InProcessClusterOptions{.workers = 3, .ps = 2}).spec();
  std::string folder = (std::filesystem::temp_directory_path() / "ships-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  write_ships(folder, 3);
  {
    const tr::StringLookup lookup = vocabulary();
    train(me, [&](const tr::InputContext& context) {
      return tr::Dataset::csv(folder + "/ships-*.csv",
                              {.columns = {tr::text_column("first", kCargoBytes),
                                           tr::text_column("second", kCargoBytes),
                                           tr::text_column("third", kCargoBytes),
                                           {.name = "of_war"}}})
          .shard(context)  // each worker has its own ships
          .shuffle(200)
          .repeat()
          .batch(32)
          .map([=](const torch::Tensor& first, const torch::Tensor& second,
                   const torch::Tensor& third, const torch::Tensor& of_war) {
            return std::make_pair(lookup(torch::stack({first, second, third}, 1)), of_war);
          });
    });
  }
  std::filesystem::remove_all(folder);
  tr::end_job(me);
} catch (const tr::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
