#include "trireme/model/model.h"

#include <utility>

#include "trireme/model/model_core.h"

namespace trireme {

ModelBase::ModelBase(std::shared_ptr<torch::nn::Module> module, Forward forward,
                     const Strategy& strategy)
    : core_(
          std::make_shared<internal::ModelCore>(std::move(module), std::move(forward), strategy)) {}

ModelBase::~ModelBase() = default;

void ModelBase::compile(CompileOptions options) {
  core_->compile(std::move(options));
}

History ModelBase::fit(const DataSource& data, const FitOptions& options) {
  return core_->fit(data, options);
}

History ModelBase::fit(const at::Tensor& x, const at::Tensor& y, const FitOptions& options) {
  return core_->fit(std::vector<at::Tensor>{x, y}, options);
}

Logs ModelBase::evaluate(const DataSource& data, const EvaluateOptions& options) {
  return core_->evaluate(data, options);
}

Logs ModelBase::evaluate(const at::Tensor& x, const at::Tensor& y, const EvaluateOptions& options) {
  return core_->evaluate(std::vector<at::Tensor>{x, y}, options);
}

at::Tensor ModelBase::predict(const at::Tensor& x, int64_t batch_size) {
  return core_->predict(x, batch_size);
}

at::Tensor ModelBase::predict(const Dataset& data) {
  return core_->predict(data);
}

void ModelBase::save(const std::string& path) const {
  core_->save(path);
}

std::vector<std::string> ModelBase::load(const std::string& path, const RestoreOptions& options) {
  return core_->load(path, options);
}

std::string ModelBase::summary() const {
  return core_->summary();
}

const Optimizer& ModelBase::optimizer() const {
  return core_->optimizer();
}

const Strategy& ModelBase::strategy() const {
  return core_->strategy();
}

}  // namespace trireme
