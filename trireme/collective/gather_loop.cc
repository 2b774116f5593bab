#include "trireme/collective/gather_loop.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/logging.h"
#include "trireme/base/status.h"
#include "trireme/collective/collective.pb.h"
#include "trireme/collective/group_service.h"
#include "trireme/rpc/call_and_wait.h"
#include "trireme/rpc/connect.h"
#include "trireme/rpc/retrying_call.h"
#include "trireme/rpc/timer.h"

namespace trireme::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Time for the answer to a question, beyond the time that rank 0 waits for missing members.
constexpr auto kGatherGrace = milliseconds(1000);
constexpr Duration kLongestQuestion = seconds(2);
constexpr auto kGatherPause = milliseconds(50);
constexpr size_t kMostNamedRanks = 8;

absl::StatusOr<GatherAnswer> ask_root(const GatherLoop& loop, Duration wait) {
  GatherRequest request;
  request.set_group(loop.group);
  request.set_group_id(loop.group_id);
  request.set_key(loop.key);
  request.set_rank(loop.entry.rank);
  request.set_size(loop.entry.size);
  request.set_ticket(loop.entry.ticket);
  request.set_bytes(loop.entry.bytes);
  request.set_task(loop.task);
  request.set_wait_ms(std::chrono::duration_cast<milliseconds>(wait).count());
  TRIREME_ASSIGN_OR_RETURN(const Message answer,
                           loop.root->call(kGatherMembers, make_message(request),
                                           {.deadline = after(wait + kGatherGrace),
                                            .incarnation = loop.incarnation,
                                            .stop = loop.stop}));
  TRIREME_ASSIGN_OR_RETURN(auto response, parse_body<GatherResponse>(answer));
  if (response.missing().empty() && response.gathered_size() != loop.entry.size) {
    return make_status(ErrorCode::kInternal, "the answer of rank 0 does not have all ranks");
  }
  for (const uint32_t rank : response.missing()) {
    if (rank >= static_cast<uint32_t>(loop.entry.size)) {
      return make_status(ErrorCode::kInternal, "rank 0 waits for a rank that does not exist");
    }
  }
  return GatherAnswer{.missing = {response.missing().begin(), response.missing().end()},
                      .id = response.group_id(),
                      .gathered = {response.gathered().begin(), response.gathered().end()}};
}

absl::StatusOr<GatherAnswer> ask_once(const GatherLoop& loop) {
  const Duration wait =
      std::clamp(loop.deadline - Clock::real().now(), Duration::zero(), kLongestQuestion);
  if (loop.root != nullptr) return ask_root(loop, wait);
  GatherEntry entry = loop.entry;
  entry.wait = wait;
  std::optional<std::stop_callback<std::function<void()>>> on_stop;
  // The timer of the table bounds the wait.
  return call_and_wait<absl::StatusOr<GatherAnswer>>([&](GatherTable::Done done) {
    loop.enter(std::move(entry), std::move(done));
    on_stop.emplace(loop.stop, loop.withdraw);
  });
}

std::string list_ranks(const GatherLoop& loop, const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamedRanks); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", loop.name_of(ranks[i]));
  }
  if (ranks.size() > kMostNamedRanks) {
    absl::StrAppend(&text, " and ", ranks.size() - kMostNamedRanks, " more");
  }
  return text;
}

// Removes the note when the loop ends.
struct NoteRemover {
  const GatherLoop& loop;
  ~NoteRemover() { loop.note(""); }
};

}  // namespace

absl::StatusOr<GatherAnswer> gather_all(const GatherLoop& loop) {
  const NoteRemover remover{loop};
  ReportTimes reports(Clock::real().now());
  bool was_final = false;
  while (true) {
    absl::StatusOr<GatherAnswer> answer = ask_once(loop);
    if (answer.ok() && answer->missing.empty()) return answer;
    // Rank 0 asks itself, so an error is not a lost call, but the end of the group.
    if (!answer.ok() && (loop.root == nullptr || !is_retryable(answer.status()))) {
      return answer.status();
    }
    std::string missing = answer.ok() ? list_ranks(loop, answer->missing) : loop.name_of(0);
    for (const int rank : answer.ok() ? answer->missing : std::vector<int>()) {
      if (loop.give_up) TRIREME_RETURN_IF_ERROR(loop.give_up(rank));
    }
    const Time now = Clock::real().now();
    loop.note(missing);
    const bool ends = now >= loop.deadline;
    if (ends || reports.due(now)) {
      if (!answer.ok()) {
        const Diagnosis diagnosis = diagnose(*loop.root, after(seconds(1)));
        if (diagnosis.is_final && std::exchange(was_final, true)) {
          return cannot_connect(*loop.root, diagnosis);
        }
        absl::StrAppend(&missing, ": ", diagnosis.cause);
      }
      if (!ends) log_info(loop.task, ": waiting for ", missing, " ", loop.purpose);
    }
    if (ends) {
      return make_status(ErrorCode::kDeadlineExceeded,
                         absl::StrCat("the time limit passed while ", loop.task, " waited ",
                                      loop.purpose, "; missing: ", missing));
    }
    if (loop.stop.stop_requested()) {
      return make_status(ErrorCode::kCancelled,
                         absl::StrCat("stopped while waiting ", loop.purpose));
    }
    if (!answer.ok()) block_until(std::min(loop.deadline, after(kGatherPause)));
  }
}

}  // namespace trireme::internal
