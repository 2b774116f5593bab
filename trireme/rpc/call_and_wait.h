#pragma once

#include <future>
#include <memory>
#include <utility>

namespace trireme {

// Blocks until an asynchronous call is answered: `start` is given the callback that takes the
// answer. The wait ends by the deadline of the call, whose callback is called in any case.
template <typename Answer, typename Start>
Answer call_and_wait(Start&& start) {
  // Shared, because set_value() may still be running on its thread when get() returns.
  auto promise = std::make_shared<std::promise<Answer>>();
  std::future<Answer> answer = promise->get_future();
  std::forward<Start>(start)(
      [promise = std::move(promise)](Answer value) { promise->set_value(std::move(value)); });
  return answer.get();
}

}  // namespace trireme
