#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trireme/base/clock.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/ps/checkpoint_folder.h"
#include "trireme/ps/ps_client.h"
#include "trireme/ps/ps_variable.h"

namespace trireme::internal {

struct PsSaveOptions {
  std::string directory;  // folder of the checkpoint, which the program and all servers share
  std::string probe;      // contents that write_probe() has written into the folder
  std::string id;         // name of the save, different for each
  bool stream = false;    // true to write the contents while they change, without a copy of them
};

// The files of a save, and the variables in them, as the manifest of a checkpoint has them. The
// files are those of the servers, in their order.
struct PsSaved {
  std::vector<SavedFile> files;
  std::vector<SavedVariable> variables;  // in the order of those that were saved
};

// A save of variables on parameter servers, each of which writes a file. Not thread-safe. The
// client must outlive it.
class PsSave {
 public:
  // Begins to save variables with the state of their optimizers. When it returns, the contents of
  // the files are decided: later changes are not saved. Each shard is saved as it was at one
  // moment; the caller must keep pushes from the servers if all shards have to be from the same
  // moment.
  static absl::StatusOr<std::unique_ptr<PsSave>> begin(PsClient& client,
                                                       std::vector<PsVariable> variables,
                                                       const PsSaveOptions& options, Time limit);
  // Aborts the save if wait() has not succeeded.
  ~PsSave();

  using Progress = std::function<void(uint64_t done, uint64_t total)>;
  // Blocks until all files are finished. Aborts the save if one server fails, or with CANCELLED if
  // `stop` is requested.
  absl::StatusOr<PsSaved> wait(const Progress& progress = {}, std::stop_token stop = {});

  struct Stats {
    Duration copy = {};               // time to decide the contents, of the slowest server
    Duration pool_wait_total = {};    // time for which changes have waited, on all servers together
    Duration pool_wait_longest = {};  // longest time that one change has waited
    uint64_t bytes = 0;               // length of all files
    uint64_t extra_bytes = 0;         // most memory that a server has used
  };
  // Returns the numbers so far.
  const Stats& stats() const { return stats_; }

 private:
  PsSave(PsClient& client, std::vector<PsVariable> variables, std::string id)
      : client_(client), variables_(std::move(variables)), id_(std::move(id)) {}
  absl::Status begin_all(const PsSaveOptions& options, const std::string& directory, Time limit);
  absl::StatusOr<PsSaved> wait_for_all(const Progress& progress, const std::stop_token& stop);
  void abort();

  PsClient& client_;
  const std::vector<PsVariable> variables_;
  const std::string id_;
  Stats stats_;
  bool done_ = false;
};

// A variable on the servers that is read from a checkpoint.
struct PsLoad {
  PsVariable variable;
  const SavedVariable* saved = nullptr;  // with the same shape and dtype
  bool slots = false;  // true to read the state of its optimizer too; the rule must be the same
};

// Reads variables from the files of a checkpoint in `directory`, which may have another number of
// shards. Returns DATA_LOSS, naming the file and the tensor, if a checksum differs; the variables
// then have damaged contents. The caller must keep pushes and pulls from the servers meanwhile.
absl::Status ps_load(PsClient& client, const std::string& directory, const Manifest& manifest,
                     const std::vector<PsLoad>& loads, const PsSave::Progress& progress = {});

}  // namespace trireme::internal
