#include "trireme/data/generated.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trireme/base/mutex.h"
#include "trireme/base/status.h"
#include "trireme/data/element.h"

namespace trireme::internal {
namespace {

struct Generators {
  Mutex mutex;
  std::map<std::string, GeneratorBody> bodies ABSL_GUARDED_BY(mutex);
};

// Made at its first use, because generators may be made before main(), in any order. Never
// destroyed, so that pointers to its functions stay valid.
Generators& generators() {
  static Generators* const generators = new Generators;
  return *generators;
}

// Returns null if there is no generator of this name.
const GeneratorBody* find_generator(const std::string& name) {
  Generators& all = generators();
  MutexLock lock(all.mutex);
  const auto found = all.bodies.find(name);
  return found == all.bodies.end() ? nullptr : &found->second;
}

Origin generator_origin(const std::string& name) {
  return {"", absl::StrCat("generator '", name, "'")};
}

// Returns true if a tensor is as the specification says, where -1 stands for any size.
bool matches(const at::Tensor& tensor, const TensorSpec& spec) {
  const auto fits = [](int64_t size, int64_t wanted) { return wanted == -1 || size == wanted; };
  return tensor.scalar_type() == spec.dtype && std::ranges::equal(tensor.sizes(), spec.sizes, fits);
}

class Generated : public Stream<Element> {
 public:
  Generated(DatasetStepPtr step, uint64_t key) : step_(std::move(step)), key_(key) {}

  Next<Element> next() override {
    TRIREME_ASSIGN_OR_RETURN(std::optional<Element> element, draw());
    if (!element) return std::nullopt;
    TRIREME_RETURN_IF_ERROR(with_origin(check(*element), generator_origin(name())));
    for (at::Tensor& tensor : *element) tensor = tensor.detach().contiguous();
    return element;
  }
  Skipped skip(int64_t count) override {
    for (int64_t i = 0; i < count; ++i) {
      TRIREME_ASSIGN_OR_RETURN(const std::optional<Element> element, draw());
      if (!element) return i;
    }
    return count;
  }

 private:
  const std::string& name() const { return step_->def.generator().name(); }

  // Calls the program's function. Its exceptions become errors that name the generator.
  Next<Element> draw() {
    if (ended_) return std::nullopt;
    Next<Element> element = std::nullopt;
    const absl::Status status = try_call([&] {
      if (make_ == nullptr) start();
      element = make_();
    });
    if (!status.ok()) return with_origin(status, generator_origin(name()));
    ++drawn_;
    ended_ = !element->has_value();
    return element;
  }
  void start() {
    const GeneratorBody* const body = find_generator(name());
    if (body == nullptr) {
      throw Error(ErrorCode::kNotFound,
                  "this task's binary has no generator of this name; run the task with the client "
                  "program's own binary, which must make the generator before it serves");
    }
    make_ = (*body)(key_);
    if (make_ == nullptr) {
      throw Error(ErrorCode::kInvalidArgument, "it returned no function that makes elements");
    }
  }
  absl::Status check(const Element& element) const {
    const ElementSpec& columns = step_->specs[0];
    for (const at::Tensor& tensor : element) {
      if (tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu()) continue;
      return invalid_argument(absl::StrCat("element ", drawn_ - 1,
                                           " has a tensor that is undefined, not dense or not in "
                                           "the memory of the CPU; return dense tensors"));
    }
    if (std::ranges::equal(element, columns, matches)) return absl::OkStatus();
    return invalid_argument(absl::StrCat("element ", drawn_ - 1, " is ",
                                         to_string(spec_of(element)), ", but its columns are ",
                                         to_string(columns), "; correct one of them"));
  }

  const DatasetStepPtr step_;
  const uint64_t key_;
  std::function<std::optional<Element>()> make_;  // null until the first element is drawn
  int64_t drawn_ = 0;                             // elements that were drawn
  bool ended_ = false;
};

}  // namespace

void register_generator(const std::string& name, GeneratorBody body) {
  Generators& all = generators();
  MutexLock lock(all.mutex);
  if (all.bodies.try_emplace(name, std::move(body)).second) return;
  throw Error(ErrorCode::kAlreadyExists,
              "the program has made a generator of this name before; choose another name, since "
              "tasks find generators by their names",
              generator_origin(name));
}

StreamPtr<Element> open_generated(DatasetStepPtr step, uint64_t key) {
  return std::make_unique<Generated>(std::move(step), key);
}

}  // namespace trireme::internal
