// A worker process of push_test. It pushes a range of one-hot updates, kInFlight at a time, over
// calls that are lost, duplicated and reordered, and keeps a ledger on disk of the updates that it
// sent and of those that were acknowledged.
//
//   push_worker ADDRESS,… WRITER FIRST COUNT WATERMARK SEED LEDGER
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <semaphore>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/fault/push_ledger.h"
#include "trireme/base/status.h"
#include "trireme/ps/ps_client.h"
#include "trireme/rpc/fault_injector.h"

namespace trireme {
namespace {

constexpr int kInFlight = 256;

int work(const std::vector<std::string>& arguments) {
  const std::vector<std::string> addresses = absl::StrSplit(arguments[0], ',');
  const uint64_t writer = std::stoull(arguments[1]), first = std::stoull(arguments[2]),
                 count = std::stoull(arguments[3]), watermark = std::stoull(arguments[4]);
  const auto faults = std::make_shared<FaultInjector>(
      std::stoull(arguments[5]), std::vector<FaultRule>{{.method = "/trireme.Variables/Push",
                                                         .lose_request = 0.05,
                                                         .lose_response = 0.05,
                                                         .duplicate = 0.1,
                                                         .delay = 0.05,
                                                         .reorder = 0.1}});
  const auto client = value_or_throw(PsClient::connect(
      {.spec = ClusterSpec(std::map<std::string, TaskAddresses>{{"ps", addresses}}),
       .faults = faults,
       .retry = {.attempt_time = std::chrono::milliseconds(500),
                 .first_delay = std::chrono::milliseconds(5),
                 .longest_delay = std::chrono::milliseconds(200)}},
      after(std::chrono::seconds(60))));
  const PsVariable counts =
      value_or_throw(client->open({counts_layout(static_cast<int>(addresses.size()))}))[0];
  const LedgerWriter ledger(arguments[6]);
  std::counting_semaphore<> slots(kInFlight);
  std::atomic<int> failed = 0;
  const at::Tensor one = at::ones({1}, at::kLong);
  for (uint64_t sequence = first; sequence < first + count; ++sequence) {
    slots.acquire();
    ledger.sent(sequence);
    client->push({{.variable = counts,
                   .rows = at::tensor(std::vector<int64_t>{element_of(sequence)}, at::kLong),
                   .values = one}},
                 {.id = {writer, sequence, 0}, .watermark = watermark},
                 [&, sequence](absl::Status status) {
                   if (status.ok()) {
                     ledger.acknowledged(sequence);
                   } else if (++failed == 1) {
                     std::fprintf(stderr, "push %lu: %s\n", sequence, describe(status).c_str());
                   }
                   slots.release();
                 });
  }
  for (int i = 0; i < kInFlight; ++i) slots.acquire();
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  return trireme::work({argv + 1, argv + argc});
}
