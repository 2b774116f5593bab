#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/checkpoint/checkpoint_reader.h"

// Declarations that the subcommands of `trireme checkpoint` share. All throw Error.
namespace trireme {

// Returns the path of the checkpoint that a user means: `path` itself if it is one, or the newest
// one in it, or with `age` 1 the one before the newest.
std::string resolve_checkpoint(const std::string& path, size_t age = 0);

// Opens a checkpoint that resolve_checkpoint() has returned. A file that is missing is damage, like
// any other.
std::unique_ptr<internal::CheckpointReader> open_checkpoint(const std::string& path);

// Returns the number of updates that the optimizer of a variable has made.
double updates_of(const internal::SavedVariable& variable);

// Prints a table of the checkpoints in a folder. Returns the exit code.
int list_checkpoints(const std::string& path, bool json);

// Prints what a checkpoint contains. Returns the exit code.
int show_checkpoint(const std::string& path, bool json);

// Prints the differences between two checkpoints. Returns the exit code, which is 0 if there are
// none.
int diff_checkpoints(const std::string& first, const std::string& second);

struct ConvertFlags {
  std::string from, to;
  uint64_t max_shard_size = 5'000'000'000;  // Bytes of tensors in one file.
  bool optimizer = false;                   // True to write the state of optimizers too.
};
// Writes the whole tensors of a checkpoint into safetensors files. Returns the exit code.
int convert_checkpoint(const ConvertFlags& flags);

}  // namespace trireme
