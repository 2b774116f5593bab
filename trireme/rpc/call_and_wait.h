#pragma once

#include <future>
#include <memory>
#include <utility>

namespace trireme {

// Starts an asynchronous call and blocks until it is answered. `start` gets the callback for the
// answer. The wait has no limit of its own: the call must have a deadline, at which it calls back.
template <typename Answer, typename Start>
Answer call_and_wait(Start&& start) {
  // Shared, because set_value() may still be running on another thread when get() returns.
  auto promise = std::make_shared<std::promise<Answer>>();
  std::future<Answer> answer = promise->get_future();
  std::forward<Start>(start)(
      [promise = std::move(promise)](Answer value) { promise->set_value(std::move(value)); });
  return answer.get();
}

}  // namespace trireme
