#include "trireme/model/callback.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/error.h"

namespace trireme {
namespace {

// A callback of functions. A null one is not called.
struct CallbackFunctions {
  std::function<void(Fit&)> train_begin, epoch_begin;
  std::function<void(Fit&, const Logs&)> train_end, epoch_end, batch_end;
};

class FunctionCallback final : public Callback {
 public:
  explicit FunctionCallback(CallbackFunctions functions) : functions_(std::move(functions)) {}

  void on_train_begin(Fit& fit) override {
    if (functions_.train_begin) functions_.train_begin(fit);
  }
  void on_train_end(Fit& fit, const Logs& logs) override {
    if (functions_.train_end) functions_.train_end(fit, logs);
  }
  void on_epoch_begin(Fit& fit) override {
    if (functions_.epoch_begin) functions_.epoch_begin(fit);
  }
  void on_epoch_end(Fit& fit, Logs& logs) override {
    if (functions_.epoch_end) functions_.epoch_end(fit, logs);
  }
  void on_batch_end(Fit& fit, const Logs& logs) override {
    if (functions_.batch_end) functions_.batch_end(fit, logs);
  }

 private:
  CallbackFunctions functions_;
};

template <typename Function>
Function not_null(const char* name, Function function) {
  if (function) return function;
  throw Error(ErrorCode::kInvalidArgument,
              absl::StrCat(name, "() was given an empty function; pass the function to call"));
}

}  // namespace

void Callback::on_train_begin(Fit&) {}
void Callback::on_train_end(Fit&, const Logs&) {}
void Callback::on_epoch_begin(Fit&) {}
void Callback::on_epoch_end(Fit&, Logs&) {}
void Callback::on_batch_end(Fit&, const Logs&) {}
void Callback::on_validation_begin(Fit&) {}
void Callback::on_validation_end(Fit&, const Logs&) {}

std::string Callback::save() const {
  return "";
}

void Callback::restore(const std::string&) {}

AnyCallback on_epoch_end(std::function<void(Fit&, const Logs&)> function) {
  return FunctionCallback({.epoch_end = not_null("on_epoch_end", std::move(function))});
}

AnyCallback on_epoch_begin(std::function<void(Fit&)> function) {
  return FunctionCallback({.epoch_begin = not_null("on_epoch_begin", std::move(function))});
}

AnyCallback on_batch_end(std::function<void(Fit&, const Logs&)> function) {
  return FunctionCallback({.batch_end = not_null("on_batch_end", std::move(function))});
}

AnyCallback on_train_begin(std::function<void(Fit&)> function) {
  return FunctionCallback({.train_begin = not_null("on_train_begin", std::move(function))});
}

AnyCallback on_train_end(std::function<void(Fit&, const Logs&)> function) {
  return FunctionCallback({.train_end = not_null("on_train_end", std::move(function))});
}

}  // namespace trireme
