// A worker process of digits_test. It trains on its share of the digits, with the variables on the
// parameter servers.
#include <torch/torch.h>

#include <cstdio>

#include "tests/integration/digits.h"
#include "trireme/ps/parameter_servers.h"

namespace tr = trireme;

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: digits_worker PS_ADDRESSES DIGITS INDEX WORKERS EPOCHS\n");
    return 2;
  }
  torch::set_num_threads(1);
  std::vector<std::string> addresses;
  std::istringstream list(argv[1]);
  for (std::string address; std::getline(list, address, ',');) addresses.push_back(address);
  const int index = std::atoi(argv[3]), workers = std::atoi(argv[4]);
  torch::manual_seed(1);  // the same initial net as in the single program
  const tr::ParameterServers servers(tr::ClusterSpec{{"ps", addresses}},
                                     {.job = "digits",
                                      .keep = true,
                                      .partitioner = tr::FixedPartitioner(2),
                                      .placement = tr::Placement::kBalanced});
  auto scope = servers.scope();
  tr::DigitsNet net;
  const tr::Adam optimizer(net, {.lr = 0.001});
  torch::manual_seed(100 + index);
  tr::train_digits(net, optimizer, tr::Digits::load(argv[2]).part(index, workers),
                   std::atoi(argv[5]));
  return 0;
}
