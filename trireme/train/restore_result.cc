#include "trireme/train/restore_result.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"

namespace trireme::internal {

absl::Status check_same_input(const std::vector<absl::StatusOr<std::string>>& results,
                              const SharedInput& input) {
  for (size_t worker = 1; worker < results.size(); ++worker) {
    const auto& result = results[worker];
    if (result.ok() && *result == *results[0]) continue;
    return make_status(
        ErrorCode::kFailedPrecondition,
        absl::StrCat("worker ", worker, " cannot ", input.verb, " the ", input.noun,
                     " that worker 0 ", input.verb, "s: ",
                     result.ok() ? absl::StrCat("it finds another ", input.noun, " under this path")
                                 : describe(result.status()),
                     ". ", input.remedy),
        {"", absl::StrCat(input.noun, " '", input.path, "'")});
  }
  return absl::OkStatus();
}

RestoreResult agree_on_restore(const WorkerAgreement& agreement, const RestoreResult& mine,
                               const std::string& id, const std::string& path) {
  if (agreement.alone()) return mine;
  const auto results =
      agreement.all(mine.step.ok() ? absl::StatusOr<std::string>(id)
                                   : absl::StatusOr<std::string>(mine.step.status()),
                    "restore of a checkpoint");
  if (!results[0].ok()) {
    const std::string damage = agreement.decide(
        [&] { return absl::StrCat(static_cast<int>(mine.damage)); }, "damage of a checkpoint");
    return {results[0].status(), static_cast<Damage>(std::stoi(damage))};
  }
  const absl::Status same = check_same_input(
      results, {.verb = "restore",
                .noun = "checkpoint",
                .path = path,
                .remedy = "Use a folder on a file system that all workers share, under the same "
                          "path"});
  return same.ok() ? mine : RestoreResult{same};
}

Error unusable_folder(const std::string& folder, const std::vector<std::string>& damages,
                      bool unreadable) {
  const std::string causes = absl::StrJoin(damages, "; ");
  const Origin origin{"", absl::StrCat("folder '", folder, "'")};
  if (unreadable) {
    return Error(ErrorCode::kUnavailable,
                 absl::StrCat("none of the ", damages.size(), " checkpoints can be read: ", causes,
                              ". Start the program again when the disk works"),
                 origin);
  }
  return Error(
      ErrorCode::kDataLoss,
      absl::StrCat("all ", damages.size(), " checkpoints are damaged: ", causes,
                   ". Restore the files from a backup, or remove the folder to begin anew"),
      origin);
}

}  // namespace trireme::internal
