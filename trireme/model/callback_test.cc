#include "trireme/model/callback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "trireme/model/terminate_on_nan.h"
#include "trireme/model/test_fit.h"
#include "trireme/testing/error_of.h"

namespace trireme {
namespace {

using internal::make_logs;
using internal::TestFit;
using testing::ElementsAre;
using testing::HasSubstr;

// Calls all functions of a callback once.
void call_each(const AnyCallback& callback, Fit fit) {
  Logs logs = make_logs({{"loss", 3}});
  callback->on_train_begin(fit);
  callback->on_epoch_begin(fit);
  callback->on_batch_end(fit, logs);
  callback->on_validation_begin(fit);
  callback->on_validation_end(fit, logs);
  callback->on_epoch_end(fit, logs);
  callback->on_train_end(fit, logs);
}

TEST(Callback, OfAFunctionCallsItAtItsMoment) {
  TestFit test;
  const Fit fit = test.at({.epoch = 2, .step = 7});
  std::vector<std::string> calls;
  const auto note = [&](const std::string& name) {
    return [&calls, name](Fit& now) { calls.push_back(name + std::to_string(now.epoch())); };
  };
  const auto note_loss = [&](const std::string& name) {
    return [&calls, name](Fit& now, const Logs& logs) {
      calls.push_back(name + std::to_string(static_cast<int>(logs["loss"]) + now.step()));
    };
  };
  const std::vector<AnyCallback> callbacks{
      on_epoch_end(note_loss("epoch end ")), on_epoch_begin(note("epoch begin ")),
      on_batch_end(note_loss("batch end ")), on_train_begin(note("train begin ")),
      on_train_end(note_loss("train end "))};
  for (const AnyCallback& callback : callbacks) call_each(callback, fit);
  EXPECT_THAT(calls, ElementsAre("epoch end 10", "epoch begin 2", "batch end 10", "train begin 2",
                                 "train end 10"));
  EXPECT_EQ(callbacks[0]->save(), "");
  callbacks[0]->restore("");
  EXPECT_EQ(error_text([] { on_epoch_end(nullptr); }),
            "on_epoch_end() was given an empty function; pass the function to call");
}

struct Counting : Callback {
  void on_epoch_begin(Fit&) override { ++count; }
  int count = 0;
};

TEST(Callback, IsCopiedOrSharedByAnyCallback) {
  TestFit test;
  Counting copied;
  const auto shared = std::make_shared<Counting>();
  const AnyCallback of_copy = copied, of_shared = shared, again = of_shared;
  call_each(of_copy, test.at({}));
  call_each(of_shared, test.at({}));
  call_each(again, test.at({}));
  EXPECT_EQ(copied.count, 0);
  EXPECT_EQ(shared->count, 2);
}

TEST(TerminateOnNan, StopsTheFitIfTheLossIsNotFinite) {
  TestFit test;
  TerminateOnNan callback;
  for (const double loss :
       {1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Logs logs = make_logs({{"accuracy", std::numeric_limits<double>::quiet_NaN()}, {"loss", loss}});
    Fit batch = test.at({});
    callback.on_batch_end(batch, logs);
    EXPECT_EQ(batch.stopped(), loss != 1);
    Fit epoch = test.at({});
    callback.on_epoch_end(epoch, logs);
    EXPECT_EQ(epoch.stopped(), loss != 1);
  }
  Fit none = test.at({});
  callback.on_batch_end(none, {});
  EXPECT_FALSE(none.stopped());
}

}  // namespace
}  // namespace trireme
