#include "trireme/train/worker_agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trireme/base/error.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

constexpr int64_t kMostText = int64_t{1} << 30;  // bytes of a text of worker 0
constexpr char kFine = '+', kFailed = '-';

// Returns a result as a text. An error has a line each for its code, task and object.
std::string encode_result(const absl::StatusOr<std::string>& result) {
  if (result.ok()) return kFine + *result;
  const absl::Status& error = result.status();
  const Origin origin = error_origin(error);
  return absl::StrCat(std::string(1, kFailed), static_cast<int>(error_code(error)), "\n",
                      origin.task, "\n", origin.object, "\n", to_error(error).message());
}

absl::StatusOr<std::string> decode_result(const std::string& text) {
  if (!text.empty() && text[0] == kFine) return text.substr(1);
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('\n', 3));
  if (text.empty() || text[0] != kFailed || parts.size() != 4) {
    return make_status(ErrorCode::kInternal, "a worker has sent a result that is malformed");
  }
  const int code = std::atoi(parts[0].c_str() + 1);
  return make_status(static_cast<ErrorCode>(code), parts[3], {parts[1], parts[2]});
}

at::Tensor bytes_of(const std::string& text) {
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  return std::string(static_cast<const char*>(bytes.const_data_ptr()), bytes.numel());
}

// Returns the text of worker 0. The others do not know its length.
std::string first_text(WorkerGroup& workers, const std::string& text, const std::string& tag) {
  const auto length = static_cast<int64_t>(text.size());
  const at::Tensor size =
      workers.first(at::full({1}, length, at::kLong), absl::StrCat("length of the ", tag));
  if (workers.worker() == 0) return text_of(workers.first(bytes_of(text), tag));
  const auto bytes = size.item<int64_t>();
  if (bytes < 0 || bytes > kMostText) {
    const std::string error = absl::StrCat("worker 0 says that the ", tag, " has ", bytes,
                                           " bytes; it may have 0 to ", kMostText);
    workers.fail(error);  // worker 0 waits for this one
    throw Error(ErrorCode::kInternal, error);
  }
  return text_of(workers.first(at::empty({bytes}, at::kByte), tag));
}

}  // namespace

std::string WorkerAgreement::decide(const std::function<std::string()>& function,
                                    const std::string& tag) const {
  if (alone()) return function();
  const std::string mine = is_chief() ? encode_result(try_call(function)) : "";
  const auto result = decode_result(first_text(*workers_, mine, tag));
  if (result.ok()) return *result;
  const Error error = to_error(result.status());
  throw Error(error.code(), absl::StrCat("worker 0: ", error.message()), error.origin());
}

std::vector<bool> WorkerAgreement::any(const std::vector<bool>& flags,
                                       const std::string& tag) const {
  if (alone()) return flags;
  const auto count = static_cast<int64_t>(flags.size());
  const at::Tensor mine = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) mine.mutable_data_ptr<int64_t>()[i] = flags[i] ? 1 : 0;
  const at::Tensor sums = workers_->sum(mine, tag);
  std::vector<bool> agreed;
  for (int64_t i = 0; i < count; ++i) agreed.push_back(sums.const_data_ptr<int64_t>()[i] > 0);
  return agreed;
}

std::vector<absl::StatusOr<std::string>> WorkerAgreement::all(
    const absl::StatusOr<std::string>& mine, const std::string& tag) const {
  if (alone()) return {mine};
  // The texts come behind each other, so each begins with its length.
  const std::string encoded = encode_result(mine);
  uint64_t length = encoded.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  const std::string joined = text_of(workers_->concatenate(bytes_of(text + encoded), tag));
  std::vector<absl::StatusOr<std::string>> results;
  size_t at = 0;
  while (results.size() < static_cast<size_t>(workers()) && at + sizeof length <= joined.size()) {
    std::memcpy(&length, joined.data() + at, sizeof length);
    results.push_back(decode_result(joined.substr(at + sizeof length, length)));
    at += sizeof length + length;
  }
  results.resize(workers(), make_status(ErrorCode::kInternal, "the worker has sent no result"));
  return results;
}

void WorkerAgreement::check(const absl::Status& mine, const std::string& tag) const {
  if (alone()) return throw_if_error(mine);
  const auto results =
      all(mine.ok() ? absl::StatusOr<std::string>("") : absl::StatusOr<std::string>(mine), tag);
  for (int worker = 0; worker < workers(); ++worker) {
    if (results[worker].ok()) continue;
    const Error error = to_error(results[worker].status());
    throw Error(error.code(), absl::StrCat("worker ", worker, ": ", error.message()),
                error.origin());
  }
}

void WorkerAgreement::fail(const std::string& what) const {
  if (alone()) return;
  std::string cause = "an unknown exception";
  try {
    throw;
  } catch (const std::exception& error) {
    cause = error.what();
  } catch (...) {
  }
  workers_->fail(absl::StrCat(what, " of worker ", worker(), " ended with an error: ", cause));
}

}  // namespace trireme::internal
