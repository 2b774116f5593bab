#include "trireme/train/worker_positions.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"

namespace trireme::internal {

std::vector<std::vector<SavedPosition>> positions_of_workers(const WorkerAgreement& agreement,
                                                             const CheckpointObjects& objects) {
  const auto& iterators = objects.iterators();
  if (agreement.alone() || iterators.empty()) return {};
  const auto mine = try_call([&]() -> std::string {
    nlohmann::json positions = nlohmann::json::array();
    for (const CheckpointedIterator& iterator : iterators) {
      const SavedPosition position = iterator.positions().at(0);
      positions.push_back({position.seed, position.next, position.returned});
    }
    return positions.dump();
  });
  std::vector<std::vector<SavedPosition>> all(iterators.size());
  for (const auto& of_worker : agreement.all(mine, "positions in the data")) {
    const auto positions = nlohmann::json::parse(value_or_throw(of_worker));
    if (positions.size() != iterators.size()) {
      throw Error(ErrorCode::kFailedPrecondition,
                  absl::StrCat("the CheckpointManager of one worker has ", positions.size(),
                               " iterators, and that of worker ", agreement.worker(), " has ",
                               iterators.size(), "; give all workers the same objects"));
    }
    for (size_t i = 0; i < iterators.size(); ++i) {
      all[i].push_back({positions[i][0], positions[i][1], positions[i][2]});
    }
  }
  return all;
}

std::vector<std::string> names_of_chief(const WorkerAgreement& agreement,
                                        const CheckpointObjects& objects) {
  std::vector<std::string> names;
  for (const CheckpointedVariable& variable : objects.variables()) {
    names.push_back(variable.variable.name());
  }
  if (agreement.alone()) return names;
  const std::string joined =
      agreement.decide([&] { return absl::StrJoin(names, "\n"); }, "names of the variables");
  std::vector<std::string> of_chief = absl::StrSplit(joined, '\n', absl::SkipEmpty());
  agreement.check(
      of_chief.size() == names.size()
          ? absl::OkStatus()
          : make_status(ErrorCode::kFailedPrecondition,
                        absl::StrCat("its CheckpointManager has ", names.size(),
                                     " variables, and that of worker 0 has ", of_chief.size(),
                                     "; give all workers the same objects")),
      "number of variables");
  return of_chief;
}

}  // namespace trireme::internal
