// `trireme checkpoint` lists, checks, shows, compares and converts checkpoints. It reads them alone
// and needs no cluster.
#include "cli/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command.h"
#include "cli/progress_bar.h"
#include "trireme/base/status.h"
#include "trireme/checkpoint/checkpoint_directory.h"

namespace trireme {
namespace {

using internal::CheckpointDirectory;
using internal::CheckpointEntry;
using internal::CheckpointReader;

constexpr char kCheckpointFooter[] = R"(
Examples:
  trireme checkpoint ls checkpoints                       the checkpoints in a folder, newest first
  trireme checkpoint verify checkpoints                   read the newest one and check all checksums
  trireme checkpoint verify checkpoints --all             check every checkpoint of the folder
  trireme checkpoint show checkpoints                     the variables of the newest one
  trireme checkpoint show checkpoints --json | jq '.variables[].name'
  trireme checkpoint diff checkpoints                     how the newest one differs from the one before
  trireme checkpoint diff run1 run2                       how the newest ones of two runs differ
  trireme checkpoint convert checkpoints model            whole tensors in model/model.safetensors
  trireme checkpoint convert checkpoints model --max-shard-size 2GB --optimizer

DIR is a folder of checkpoints, of which the newest one is used, or one checkpoint:
checkpoints/step-0000000042. The exit code is 0 if all is well, 1 if a checkpoint is damaged or if two
checkpoints differ, and 2 if the command is wrong or there is no checkpoint.)";

struct CheckpointFlags {
  std::string path, other;
  bool json = false, all = false;
  ConvertFlags convert;
};

std::vector<CheckpointEntry> entries_in(const std::string& path) {
  if (!std::filesystem::is_directory(path)) {
    throw Error(ErrorCode::kNotFound,
                absl::StrCat("'", path, "' is not a folder; give a folder with checkpoints"));
  }
  std::vector<CheckpointEntry> entries =
      value_or_throw(CheckpointDirectory(Files::local(), path).list());
  if (entries.empty()) {
    throw Error(
        ErrorCode::kNotFound,
        absl::StrCat("'", path, "' has no checkpoint: neither it nor a folder step-* in it has a ",
                     internal::kManifestName, ", which a save writes last"));
  }
  return entries;
}

bool is_checkpoint(const std::string& path) {
  return value_or_throw(Files::local().exists(join_path(path, internal::kManifestName)));
}

// Reads a whole checkpoint. Returns false, and says why, if it is damaged.
bool verify_one(const std::string& path) {
  try {
    const auto reader = open_checkpoint(path);
    {
      ProgressBar bar("verify", stderr);
      throw_if_error(
          reader->verify([&](uint64_t done, uint64_t total) { bar.update(done, total); }));
    }
    uint64_t bytes = 0;
    for (const auto& file : reader->manifest().files) bytes += file.bytes;
    absl::PrintF("%s is whole: %d tensors, %s in %d files\n", path,
                 tensors_of(reader->manifest()).size(), format_bytes(bytes),
                 reader->manifest().files.size());
    return true;
  } catch (const Error& error) {
    say(absl::StrCat(path, " is damaged: ", text_of(error)));
    return false;
  }
}

int verify_checkpoints(const CheckpointFlags& flags) {
  if (!flags.all || is_checkpoint(flags.path)) {
    return verify_one(resolve_checkpoint(flags.path)) ? 0 : kRunTimeError;
  }
  int code = 0;
  for (const CheckpointEntry& entry : entries_in(flags.path)) {
    if (!verify_one(entry.path)) code = kRunTimeError;
  }
  return code;
}

int diff_given(const CheckpointFlags& flags) {
  if (!flags.other.empty()) {
    return diff_checkpoints(resolve_checkpoint(flags.path), resolve_checkpoint(flags.other));
  }
  if (is_checkpoint(flags.path)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        absl::StrCat("'", flags.path, "' is one checkpoint; give another one to compare it with"));
  }
  return diff_checkpoints(resolve_checkpoint(flags.path, /*age=*/1),
                          resolve_checkpoint(flags.path));
}

using CheckpointFlagsPointer = std::shared_ptr<CheckpointFlags>;

// Adds a subcommand with the argument DIR, which `run` runs.
CLI::App* add_one(CLI::App* command, const char* name, const char* help,
                  const CheckpointFlagsPointer& flags, Invocation& invocation,
                  std::function<int()> run) {
  CLI::App* added = command->add_subcommand(name, help);
  added->add_option("DIR", flags->path, "A folder of checkpoints, or one checkpoint")->required();
  added->footer(kCheckpointFooter);
  added->callback([&invocation, run = std::move(run)] { invocation.run = run; });
  return added;
}

}  // namespace

std::string resolve_checkpoint(const std::string& path, size_t age) {
  if (is_checkpoint(path)) return path;
  const std::vector<CheckpointEntry> entries = entries_in(path);
  if (entries.size() > age) return entries[age].path;
  throw Error(ErrorCode::kNotFound,
              absl::StrCat("'", path, "' has only the checkpoint ", entries[0].name,
                           "; give another one to compare it with"));
}

std::unique_ptr<CheckpointReader> open_checkpoint(const std::string& path) {
  auto reader = CheckpointReader::open(Files::local(), path);
  if (!reader.ok() && error_code(reader.status()) == ErrorCode::kNotFound) {
    const Error error = to_error(reader.status());
    throw Error(ErrorCode::kDataLoss, error.message(), error.origin());
  }
  return value_or_throw(std::move(reader));
}

double updates_of(const internal::SavedVariable& variable) {
  double updates = 0;
  for (const auto& shard : variable.shards) updates = std::max(updates, shard.step);
  return updates;
}

void add_checkpoint_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      app.add_subcommand("checkpoint", "List, check, show, compare and convert checkpoints");
  command->require_subcommand(1);
  command->footer(kCheckpointFooter);
  const auto flags = std::make_shared<CheckpointFlags>();
  CLI::App* list = add_one(command, "ls", "List the checkpoints in a folder", flags, invocation,
                           [flags] { return list_checkpoints(flags->path, flags->json); });
  list->add_flag("--json", flags->json, "Print JSON for programs");
  CLI::App* verify = add_one(command, "verify", "Read a checkpoint and check all checksums", flags,
                             invocation, [flags] { return verify_checkpoints(*flags); });
  verify->add_flag("--all", flags->all, "Check all checkpoints of the folder, not only the newest");
  CLI::App* show =
      add_one(command, "show", "Show what a checkpoint contains", flags, invocation,
              [flags] { return show_checkpoint(resolve_checkpoint(flags->path), flags->json); });
  show->add_flag("--json", flags->json, "Print the manifest as JSON for programs");
  CLI::App* diff = add_one(command, "diff", "Compare two checkpoints", flags, invocation,
                           [flags] { return diff_given(*flags); });
  diff->add_option("OTHER", flags->other,
                   "The checkpoint to compare with, or a folder of checkpoints; default: the two "
                   "newest ones of DIR are compared");
  CLI::App* convert = add_one(command, "convert", "Write whole tensors as safetensors for Python",
                              flags, invocation, [flags] {
                                flags->convert.from = resolve_checkpoint(flags->path);
                                return convert_checkpoint(flags->convert);
                              });
  convert->add_option("OUT", flags->convert.to, "The folder to write to")->required();
  convert
      ->add_option("--max-shard-size", flags->convert.max_shard_size,
                   "Bytes of tensors in one file, for example 5GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->default_str("5GB")
      ->type_name("SIZE");
  convert->add_flag("--optimizer", flags->convert.optimizer,
                    "Write the state of optimizers too, as optimizer.safetensors");
}

}  // namespace trireme
