#include "tests/fuzz/operators/mutation.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

// A mutation is identified by its name in one of the tables below. mutations_of() lists the names
// that make sense for the type of an argument, and apply() looks the name up again.
namespace trireme::fuzz {
namespace {

using at::Tensor;
using Numbers = std::vector<int64_t>;

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns a copy in a block of its own, which ends where the tensor ends.
Tensor moved(const Tensor& tensor) {
  return tensor.clone(at::MemoryFormat::Contiguous);
}

Tensor with_sizes(const Tensor& tensor, const Numbers& sizes) {
  // The contents are repeated, so that indices stay valid.
  int64_t numel = 1;
  for (int64_t size : sizes) numel *= size;
  if (tensor.numel() == 0 || numel == 0) return at::full(sizes, 0, tensor.options());
  const Tensor row = tensor.flatten();
  return row.repeat({(numel + row.numel() - 1) / row.numel()})
      .narrow(0, 0, numel)
      .reshape(sizes)
      .clone();
}

Tensor resized(const Tensor& tensor, int64_t dim, int64_t size) {
  Numbers sizes = tensor.sizes().vec();
  if (sizes.empty()) return with_sizes(tensor, {size});
  sizes[dim < 0 ? sizes.size() - 1 : dim] = std::max<int64_t>(size, 0);
  return with_sizes(tensor, sizes);
}

struct TensorMutation {
  const char* kind;
  Tensor (*change)(const Tensor&);
};

// Returns a tensor that shows each element of memory more than once.
Tensor expanded_in(const Tensor& t, int64_t dim) {
  return moved(t.narrow(dim, 0, 1)).expand(t.sizes());
}

Tensor reversed_order(const Tensor& t) {
  Numbers order(t.dim());
  for (int64_t i = 0; i < t.dim(); ++i) order[i] = t.dim() - 1 - i;
  return moved(t.permute(order)).permute(order);
}

Tensor with_gaps(const Tensor& t) {
  Numbers sizes = t.sizes().vec();
  sizes.back() = 2 * sizes.back();
  // The gaps hold invalid indices, which a check of the elements alone does not see.
  const Tensor wide = at::full(sizes, t.scalar_type() == at::kBool ? 1 : 117, t.options());
  Tensor view = wide.slice(-1, 1, std::nullopt, 2);
  view.copy_(t);
  return view;
}

// The stride of a dimension of size 1 has no meaning, but some kernels use it.
Tensor with_strides_of_ones(const Tensor& t, int64_t stride) {
  Numbers strides = t.sizes().empty() ? Numbers() : moved(t).strides().vec();
  for (int64_t i = 0; i < t.dim(); ++i) {
    if (t.size(i) == 1) strides[i] = stride;
  }
  return at::as_strided(moved(t), t.sizes(), strides);
}

const TensorMutation kOnes[] = {
    {"ones_0", [](const Tensor& t) { return with_strides_of_ones(t, 0); }},
    {"ones_far", [](const Tensor& t) { return with_strides_of_ones(t, int64_t{1} << 40); }},
};

const TensorMutation kStrides[] = {
    {"expanded",
     [](const Tensor& t) {
       return moved(t.flatten().narrow(0, 0, 1)).squeeze(0).expand(t.sizes());
     }},
    {"expanded_first", [](const Tensor& t) { return expanded_in(t, 0); }},
    {"expanded_last", [](const Tensor& t) { return expanded_in(t, -1); }},
    {"reversed", reversed_order},
    {"gaps", with_gaps},
    {"overlapping",
     [](const Tensor& t) {
       const Tensor row = moved(t.flatten());
       return at::as_strided(row, t.sizes(), Numbers(t.dim(), 1));
     }},
};

const TensorMutation kSizes[] = {
    {"empty", [](const Tensor& t) { return with_sizes(t, {0}); }},
    {"scalar", [](const Tensor& t) { return with_sizes(t, {}); }},
    {"one", [](const Tensor& t) { return with_sizes(t, {1}); }},
    {"first_0", [](const Tensor& t) { return resized(t, 0, 0); }},
    {"none_of_some", [](const Tensor& t) { return resized(t, 0, 2).narrow(0, 0, 0); }},
    {"last_0", [](const Tensor& t) { return resized(t, -1, 0); }},
    {"first_1", [](const Tensor& t) { return resized(t, 0, 1); }},
    {"last_1", [](const Tensor& t) { return resized(t, -1, 1); }},
    {"all_1", [](const Tensor& t) { return with_sizes(t, Numbers(t.dim(), 1)); }},
    {"first_less", [](const Tensor& t) { return resized(t, 0, t.dim() ? t.size(0) - 1 : 0); }},
    {"last_less", [](const Tensor& t) { return resized(t, -1, t.dim() ? t.size(-1) - 1 : 0); }},
    {"first_more", [](const Tensor& t) { return resized(t, 0, t.dim() ? t.size(0) + 1 : 2); }},
    {"last_more", [](const Tensor& t) { return resized(t, -1, t.dim() ? t.size(-1) + 1 : 2); }},
    {"first_many", [](const Tensor& t) { return resized(t, 0, 700); }},
    {"last_many", [](const Tensor& t) { return resized(t, -1, 700); }},
    {"flat", [](const Tensor& t) { return with_sizes(t, {t.numel()}); }},
    {"dim_more",
     [](const Tensor& t) {
       Numbers sizes = t.sizes().vec();
       sizes.insert(sizes.begin(), 2);
       return with_sizes(t, sizes);
     }},
    {"dim_less",
     [](const Tensor& t) {
       return with_sizes(t, t.dim() ? t.sizes().slice(1).vec() : Numbers{3});
     }},
};

const std::pair<const char*, c10::ScalarType> kMutatedDtypes[] = {
    {"as_f32", at::kFloat},     {"as_f64", at::kDouble},       {"as_f16", at::kHalf},
    {"as_bf16", at::kBFloat16}, {"as_i64", at::kLong},         {"as_i32", at::kInt},
    {"as_i16", at::kShort},     {"as_i8", at::kChar},          {"as_u8", at::kByte},
    {"as_bool", at::kBool},     {"as_c64", at::kComplexFloat},
};

struct Fill {
  const char* kind;
  double number;
  int64_t whole;
};
const Fill kFills[] = {
    {"fill_0", 0, 0},
    {"fill_-1", -1, -1},
    {"fill_1", 1, 1},
    {"fill_least", -kInfinity, kMin},
    {"fill_most", kInfinity, kMax},
    {"fill_far", 1e18, int64_t{1} << 40},
    {"fill_-far", -1e15 - 0.5, -(int64_t{1} << 40)},
    {"fill_mid", 1e5 + 0.5, 1 << 20},
    {"fill_nan", kNan, std::numeric_limits<int32_t>::min()},
};

Tensor filled(const Tensor& tensor, const Fill& fill) {
  if (tensor.is_floating_point() || tensor.is_complex()) {
    return at::full(tensor.sizes(), fill.number, tensor.options());
  }
  const int bits = 8 * static_cast<int>(tensor.element_size());
  int64_t whole = fill.whole;
  // Use the extremes of the tensor's own dtype.
  if (bits < 64 && whole == kMin) whole = -(int64_t{1} << (bits - 1));
  if (bits < 64 && whole == kMax) whole = (int64_t{1} << (bits - 1)) - 1;
  if (bits < 64) whole &= (int64_t{1} << bits) - 1;
  if (tensor.scalar_type() == at::kBool) whole &= 1;
  Tensor made = at::empty(tensor.sizes(), tensor.options().dtype(at::kLong));
  made.fill_(whole);
  return made.to(tensor.scalar_type());
}

Tensor mutate_tensor(const Tensor& tensor, const std::string& kind) {
  for (const TensorMutation& mutation : kStrides) {
    if (kind == mutation.kind) return mutation.change(tensor);
  }
  for (const TensorMutation& mutation : kOnes) {
    if (kind == mutation.kind) return mutation.change(tensor);
  }
  for (const TensorMutation& mutation : kSizes) {
    if (kind == mutation.kind) return mutation.change(tensor);
  }
  for (const auto& [name, dtype] : kMutatedDtypes) {
    if (kind == name) return tensor.to(dtype);
  }
  for (const Fill& fill : kFills) {
    if (kind == fill.kind) return filled(tensor, fill);
  }
  if (kind == "sparse") return tensor.to_sparse();
  if (kind == "undefined") return {};
  throw std::runtime_error("unknown mutation of a tensor: " + kind);
}

void mutations_of_tensor(const Tensor& tensor, size_t argument, int item,
                         std::vector<Mutation>& mutations) {
  const auto add = [&](const char* kind) { mutations.push_back({argument, item, kind}); };
  if (!tensor.defined() || tensor.layout() != at::kStrided) return add("undefined");
  if (tensor.dim() > 0 && tensor.numel() > 1) {
    for (const TensorMutation& mutation : kStrides) add(mutation.kind);
  }
  if (std::ranges::count(tensor.sizes(), 1) > 0) {
    for (const TensorMutation& mutation : kOnes) add(mutation.kind);
  }
  for (const TensorMutation& mutation : kSizes) add(mutation.kind);
  for (const auto& [name, dtype] : kMutatedDtypes) {
    if (dtype != tensor.scalar_type()) add(name);
  }
  for (const Fill& fill : kFills) add(fill.kind);
  add("undefined");
  if (tensor.dim() > 0) add("sparse");
}

const std::pair<const char*, int64_t> kIntegers[] = {
    {"int_0", 0},
    {"int_1", 1},
    {"int_-1", -1},
    {"int_2", 2},
    {"int_-2", -2},
    {"int_7", 7},
    {"int_1000", 1000},
    {"int_31", int64_t{1} << 31},
    {"int_40", int64_t{1} << 40},
    {"int_max", kMax},
    {"int_min", kMin},
    {"int_62", int64_t{1} << 62},
};
const std::pair<const char*, double> kNumbers[] = {
    {"num_0", 0},       {"num_-1", -1},         {"num_2", 2},
    {"num_nan", kNan},  {"num_inf", kInfinity}, {"num_-inf", -kInfinity},
    {"num_far", 1e300}, {"num_-far", -1e18},    {"num_tiny", 1e-310},
};
const std::pair<const char*, const char*> kTexts[] = {
    {"text_none", ""},     {"text_trunc", "trunc"}, {"text_floor", "floor"},
    {"text_mean", "mean"}, {"text_prod", "prod"},   {"text_amax", "amax"},
    {"text_tanh", "tanh"}, {"text_other", "other"},
};

template <typename T>
const T* find(const std::pair<const char*, T>* begin, const std::pair<const char*, T>* end,
              const std::string& kind) {
  for (auto* at = begin; at != end; ++at) {
    if (kind == at->first) return &at->second;
  }
  return nullptr;
}

const int64_t* find_integer(const std::string& kind) {
  return find(std::begin(kIntegers), std::end(kIntegers), kind);
}
const double* find_number(const std::string& kind) {
  return find(std::begin(kNumbers), std::end(kNumbers), kind);
}

c10::IValue mutate_number(const c10::IValue& value, const std::string& kind) {
  if (kind == "flip") return !value.toBool();
  if (kind == "bool") return true;
  if (kind == "complex") return c10::complex<double>(1, 2);
  if (const int64_t* integer = find_integer(kind)) return *integer;
  if (const double* number = find_number(kind)) return *number;
  throw std::runtime_error("unknown mutation of a number: " + kind);
}

bool is_tensor_list(const c10::IValue& value) {
  if (!value.isList()) return false;
  const auto kind = value.toList().elementType()->kind();
  return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::OptionalType;
}

// Mutates a list as a whole ("list_…") or its first or last item ("first_int_0").
c10::IValue mutate_list(const c10::IValue& value, const std::string& kind) {
  c10::impl::GenericList list = value.toList().copy();
  if (kind == "list_empty") {
    list.clear();
  } else if (kind == "list_less") {
    list.pop_back();
  } else if (kind == "list_more") {
    list.push_back(c10::IValue(list.get(0)));
  } else if (kind == "list_reversed") {
    for (size_t i = 0; i < list.size() / 2; ++i) {
      const c10::IValue front = list.get(i);
      list.set(i, list.get(list.size() - 1 - i));
      list.set(list.size() - 1 - i, front);
    }
  } else {
    const bool first = kind.starts_with("first_");
    const std::string inner = kind.substr(kind.find('_') + 1);
    const size_t index = first ? 0 : list.size() - 1;
    list.set(index, mutate_number(list.get(index), inner));
  }
  return list;
}

void mutations_of_list(const c10::IValue& value, size_t argument,
                       std::vector<Mutation>& mutations) {
  const auto add = [&](std::string kind) { mutations.push_back({argument, -1, std::move(kind)}); };
  if (value.toList().empty()) return;
  for (const char* kind : {"list_empty", "list_less", "list_more", "list_reversed"}) add(kind);
  const auto kind = value.toList().elementType()->kind();
  for (const char* place : {"first_", "last_"}) {
    if (kind == c10::TypeKind::BoolType) add(std::string(place) + "flip");
    if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::NumberType) {
      for (const auto& [name, number] : kIntegers) add(std::string(place) + name);
    }
    if (kind == c10::TypeKind::FloatType || kind == c10::TypeKind::NumberType) {
      for (const auto& [name, number] : kNumbers) add(std::string(place) + name);
    }
  }
}

}  // namespace

std::string Mutation::text() const {
  std::string where = std::to_string(argument);
  if (item >= 0) where += "." + std::to_string(item);
  return where + ":" + kind;
}

std::vector<Mutation> mutations_of(const c10::OperatorHandle& op, const Arguments& arguments) {
  std::vector<Mutation> mutations;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    const auto type = op.schema().arguments()[i].type();
    const auto add = [&](const char* kind) { mutations.push_back({i, -1, kind}); };
    if (type->kind() == c10::TypeKind::OptionalType && !value.isNone()) add("none");
    if (value.isTensor()) {
      mutations_of_tensor(value.toTensor(), i, -1, mutations);
    } else if (is_tensor_list(value)) {
      const auto items = value.toListRef();
      for (size_t k = 0; k < items.size() && k < 2; ++k) {
        if (items[k].isTensor()) {
          mutations_of_tensor(items[k].toTensor(), i, static_cast<int>(k), mutations);
        }
      }
      if (items.empty()) continue;
      for (const char* kind : {"list_empty", "list_less", "list_more", "list_reversed"}) add(kind);
    } else if (value.isList()) {
      mutations_of_list(value, i, mutations);
    } else if (value.isBool()) {
      add("flip");
    } else if (value.isInt()) {
      for (const auto& [name, number] : kIntegers) add(name);
    } else if (value.isString()) {
      for (const auto& [name, text] : kTexts) add(name);
    }
    const bool any_number = type->kind() == c10::TypeKind::NumberType && value.isScalar();
    if (value.isDouble() || any_number) {
      for (const auto& [name, number] : kNumbers) add(name);
    }
    if (any_number) {
      if (!value.isInt()) {
        for (const auto& [name, number] : kIntegers) add(name);
      }
      add("bool");
      add("complex");
    }
  }
  return mutations;
}

void apply(const Mutation& mutation, Arguments& arguments) {
  c10::IValue& value = arguments.at(mutation.argument);
  if (mutation.kind == "none") {
    value = c10::IValue();
  } else if (mutation.item >= 0) {
    c10::impl::GenericList list = value.toList().copy();
    if (mutation.item >= static_cast<int>(list.size())) return;
    list.set(mutation.item,
             mutate_tensor(c10::IValue(list.get(mutation.item)).toTensor(), mutation.kind));
    value = list;
  } else if (value.isTensor()) {
    value = mutate_tensor(value.toTensor(), mutation.kind);
  } else if (value.isList()) {
    if (!value.toList().empty()) value = mutate_list(value, mutation.kind);
  } else if (value.isString()) {
    const auto* text = find(std::begin(kTexts), std::end(kTexts), mutation.kind);
    if (text != nullptr) value = std::string(*text);
  } else if (value.isScalar()) {
    value = mutate_number(value, mutation.kind);
  }
}

}  // namespace trireme::fuzz
