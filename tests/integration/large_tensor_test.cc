// A tensor beyond 2 GiB arrives intact in another process, and neither process needs memory for a
// second copy of it. This binary starts itself again as the process that sends.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <future>
#include <sstream>
#include <string>

#include "trireme/base/machine.h"
#include "trireme/base/subprocess.h"
#include "trireme/rpc/channel.h"
#include "trireme/rpc/server.h"

namespace trireme {
namespace {

constexpr int64_t kBytes = int64_t{5} << 30;
constexpr int64_t kAllowed = 64 << 20;
constexpr char kFetch[] = "/test.Test/Fetch";
constexpr char kSenderFlag[] = "--sender";

// Returns a word of the test pattern. It depends on the index, so that a lost, duplicated or moved
// piece is detected.
uint64_t word_at(int64_t index) {
  return static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u + 1;
}

class FetchService final : public Service {
 public:
  explicit FetchService(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  std::vector<Method> methods() override {
    return {{kFetch, Roles::all(), Repeats::kHarmless, [this](ServerCall call) {
               call.respond(Message{"", {tensor_}});
             }}};
  }

 private:
  at::Tensor tensor_;
};

int run_sender() {
  at::Tensor tensor = BufferPool::shared().empty({kBytes / 8}, at::kLong);
  auto* words = static_cast<uint64_t*>(tensor.data_ptr());
  for (int64_t i = 0; i < kBytes / 8; ++i) words[i] = word_at(i);
  std::vector<std::unique_ptr<Service>> services;
  services.push_back(std::make_unique<FetchService>(tensor));
  auto server = value_or_throw(RpcServer::start(
      {.address = "127.0.0.1:0", .task = "/job:ps/task:0", .incarnation = 1}, std::move(services)));
  printf("%s\n", server->address().c_str());
  fflush(stdout);
  pause();  // until the test kills it
  return 0;
}

// Resets the peak of the resident memory, so that it is measured from now on.
void reset_peak(pid_t pid) {
  std::ofstream file("/proc/" + std::to_string(pid) + "/clear_refs");
  file << "5";
  ASSERT_TRUE(file.flush()) << "cannot reset the memory peak";
}

TEST(LargeTensor, ArrivesIntactWithoutACopyOnEitherSide) {
  std::promise<std::string> announced;
  auto sender = value_or_throw(Subprocess::start(
      {.argv = {"/proc/self/exe", kSenderFlag},
       .on_stdout = [&](const std::string& line) { announced.set_value(line); }}));
  std::future<std::string> address = announced.get_future();
  ASSERT_EQ(address.wait_for(std::chrono::seconds(120)), std::future_status::ready);
  Channel channel({.address = address.get(), .task = "/job:ps/task:0"});
  throw_if_error(channel.hello(after(std::chrono::seconds(30))).status());

  const pid_t self = getpid();
  const int64_t sender_before = process_memory(sender->pid()).resident;
  const int64_t receiver_before = process_memory(self).resident;
  reset_peak(sender->pid());
  reset_peak(self);
  CallOptions options = {.deadline = after(std::chrono::seconds(180)), .large_response = true};
  const auto start = Clock::real().now();
  Message answer = value_or_throw(channel.call(kFetch, {}, options));
  const double took = std::chrono::duration<double>(Clock::real().now() - start).count();
  const int64_t sender_grew = process_memory(sender->pid()).peak - sender_before;
  const int64_t receiver_grew = process_memory(self).peak - receiver_before;
  printf(
      "5 GiB in %.1f s (%.2f GB/s); the sender grew by %.1f MiB, the receiver by the tensor + %.1f "
      "MiB\n",
      took, kBytes / took / 1e9, sender_grew / 1048576.0, (receiver_grew - kBytes) / 1048576.0);
  EXPECT_LT(sender_grew, kAllowed);
  EXPECT_LT(receiver_grew, kBytes + kAllowed);

  ASSERT_EQ(answer.tensors.size(), 1u);
  const at::Tensor& tensor = answer.tensors[0];
  ASSERT_EQ(tensor.scalar_type(), at::kLong);
  ASSERT_EQ(tensor.numel(), kBytes / 8);
  const auto* words = static_cast<const uint64_t*>(tensor.const_data_ptr());
  int64_t wrong = 0;
  for (int64_t i = 0; i < tensor.numel(); ++i) wrong += words[i] != word_at(i);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == trireme::kSenderFlag) return trireme::run_sender();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
