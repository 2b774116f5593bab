// Encoding follows the IValue, since a capture knows what it got. Decoding follows the schema: a
// graph may come from an untrusted peer, so an argument must have exactly the kind that the
// operator's schema declares. LibTorch does not compare the arguments of a boxed call with the
// schema.
#include "trireme/graph/argument.h"

#include <ATen/core/Reduction.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/status.h"

namespace trireme::internal {
namespace {

using Kind = ArgumentPlan::Kind;
using proto::Argument;

constexpr int kMaxListLength = 1 << 20;

void encode_scalar(const c10::IValue& scalar, Argument* out) {
  if (scalar.isBool()) {
    out->set_boolean(scalar.toBool());
  } else if (scalar.isInt()) {
    out->set_integer(scalar.toInt());
  } else if (scalar.isDouble()) {
    out->set_number(scalar.toDouble());
  } else if (scalar.isComplexDouble()) {
    out->mutable_complex()->set_real(scalar.toComplexDouble().real());
    out->mutable_complex()->set_imaginary(scalar.toComplexDouble().imag());
  } else {
    throw Error(ErrorCode::kUnimplemented, "a symbolic number cannot be part of a graph");
  }
}

void encode_list(const c10::IValue& argument, const ValueOf& value_of, Argument* out) {
  const auto list = argument.toListRef();
  const c10::TypePtr element = argument.toList().elementType();
  switch (element->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::OptionalType:
      out->mutable_values();
      for (const c10::IValue& item : list) {
        out->mutable_values()->add_ids(item.isNone() ? -1 : value_of(item.toTensor()));
      }
      return;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      out->mutable_integers();
      for (const c10::IValue& item : list) {
        if (!item.isInt()) {
          throw Error(ErrorCode::kUnimplemented, "a symbolic size cannot be part of a graph");
        }
        out->mutable_integers()->add_items(item.toInt());
      }
      return;
    case c10::TypeKind::FloatType:
      out->mutable_numbers();
      for (const c10::IValue& item : list) out->mutable_numbers()->add_items(item.toDouble());
      return;
    case c10::TypeKind::BoolType:
      out->mutable_booleans();
      for (const c10::IValue& item : list) out->mutable_booleans()->add_items(item.toBool());
      return;
    case c10::TypeKind::NumberType:
      out->mutable_scalars();
      for (const c10::IValue& item : list) encode_scalar(item, out->mutable_scalars()->add_items());
      return;
    default:
      throw Error(ErrorCode::kUnimplemented,
                  absl::StrCat("a list of ", element->str(), " cannot be part of a graph"));
  }
}

absl::Status wrong_type(const Argument& argument, const c10::Argument& schema) {
  return make_status(ErrorCode::kInvalidArgument,
                     absl::StrCat("argument '", schema.name(), "' must be ", schema.type()->str(),
                                  ", but is ", format_argument(argument)));
}

ArgumentPlan constant_of(c10::IValue value) {
  ArgumentPlan plan;
  plan.constant = std::move(value);
  return plan;
}

// Returns false for an integer that stands for an enumerator which does not exist. Schemas declare
// enumerations as integers, and LibTorch casts them without a check.
bool in_enumeration(int64_t value, const c10::Argument& schema) {
  if (schema.name() == "reduction") return value >= 0 && value < at::Reduction::END;
  c10::TypePtr type = schema.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return value >= 0 && value < static_cast<int64_t>(c10::ScalarType::Undefined);
    case c10::TypeKind::LayoutType:  // guards can check these two layouts only
      return value == static_cast<int64_t>(c10::Layout::Strided) ||
             value == static_cast<int64_t>(c10::Layout::Sparse);
    case c10::TypeKind::MemoryFormatType:
      return value >= 0 && value < static_cast<int64_t>(c10::MemoryFormat::NumOptions);
    default:
      return true;
  }
}

template <typename T, typename Items>
ArgumentPlan list_of(const Items& items) {
  c10::List<T> list;
  list.reserve(items.size());
  for (const auto& item : items) list.push_back(item);
  return constant_of(std::move(list));
}

absl::StatusOr<c10::Scalar> decode_scalar(const Argument& argument, const c10::Argument& schema) {
  switch (argument.kind_case()) {
    case Argument::kInteger:
      return c10::Scalar(argument.integer());
    case Argument::kNumber:
      return c10::Scalar(argument.number());
    case Argument::kBoolean:
      return c10::Scalar(argument.boolean());
    case Argument::kComplex:
      return c10::Scalar(
          c10::complex<double>(argument.complex().real(), argument.complex().imaginary()));
    default:
      return wrong_type(argument, schema);
  }
}

absl::StatusOr<ArgumentPlan> decode_values(const Argument& argument, const c10::Argument& schema,
                                           bool optional) {
  if (!argument.has_values()) return wrong_type(argument, schema);
  ArgumentPlan plan;
  plan.kind = optional ? Kind::kOptionalValues : Kind::kValues;
  plan.values.assign(argument.values().ids().begin(), argument.values().ids().end());
  if (!optional && std::ranges::any_of(plan.values, [](int64_t id) { return id < 0; })) {
    return make_status(ErrorCode::kInvalidArgument,
                       absl::StrCat("argument '", schema.name(), "' contains an undefined tensor"));
  }
  return plan;
}

absl::StatusOr<ArgumentPlan> decode_list(const Argument& argument, const c10::Argument& schema,
                                         const c10::TypePtr& element) {
  switch (element->kind()) {
    case c10::TypeKind::TensorType:
      return decode_values(argument, schema, /*optional=*/false);
    case c10::TypeKind::OptionalType:
      if (element->castRaw<c10::OptionalType>()->getElementType()->kind() !=
          c10::TypeKind::TensorType) {
        return wrong_type(argument, schema);
      }
      return decode_values(argument, schema, /*optional=*/true);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (!argument.has_integers()) return wrong_type(argument, schema);
      return list_of<int64_t>(argument.integers().items());
    case c10::TypeKind::FloatType:
      if (!argument.has_numbers()) return wrong_type(argument, schema);
      return list_of<double>(argument.numbers().items());
    case c10::TypeKind::BoolType:
      if (!argument.has_booleans()) return wrong_type(argument, schema);
      return list_of<bool>(argument.booleans().items());
    case c10::TypeKind::NumberType: {
      if (!argument.has_scalars()) return wrong_type(argument, schema);
      c10::List<c10::Scalar> list;
      for (const Argument& item : argument.scalars().items()) {
        TRIREME_ASSIGN_OR_RETURN(c10::Scalar scalar, decode_scalar(item, schema));
        list.push_back(scalar);
      }
      return constant_of(std::move(list));
    }
    default:
      return wrong_type(argument, schema);
  }
}

// Decodes by `type`, which is the schema's type or, for an optional, the type inside of it.
absl::StatusOr<ArgumentPlan> decode_as(const Argument& argument, const c10::Argument& schema,
                                       const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      if (argument.has_none()) return constant_of(c10::IValue());
      return decode_as(argument, schema, type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::TensorType: {
      if (argument.kind_case() != Argument::kValue) return wrong_type(argument, schema);
      ArgumentPlan plan;
      plan.kind = Kind::kValue;
      plan.value = argument.value();
      return plan;
    }
    case c10::TypeKind::ListType:
      return decode_list(argument, schema, type->castRaw<c10::ListType>()->getElementType());
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (argument.kind_case() != Argument::kInteger ||
          !in_enumeration(argument.integer(), schema)) {
        return wrong_type(argument, schema);
      }
      return constant_of(argument.integer());
    case c10::TypeKind::FloatType:
      if (argument.kind_case() != Argument::kNumber) return wrong_type(argument, schema);
      return constant_of(argument.number());
    case c10::TypeKind::BoolType:
      if (argument.kind_case() != Argument::kBoolean) return wrong_type(argument, schema);
      return constant_of(argument.boolean());
    case c10::TypeKind::NumberType: {
      TRIREME_ASSIGN_OR_RETURN(c10::Scalar scalar, decode_scalar(argument, schema));
      return constant_of(scalar);
    }
    case c10::TypeKind::StringType:
      if (argument.kind_case() != Argument::kText) return wrong_type(argument, schema);
      return constant_of(argument.text());
    case c10::TypeKind::DeviceObjType: {
      if (argument.kind_case() != Argument::kDevice) return wrong_type(argument, schema);
      const auto device = try_call([&] { return c10::Device(argument.device()); });
      // A tensor on the meta device has a shape but no memory, so it can be neither checked nor
      // sent.
      if (!device.ok() || device->is_meta()) return wrong_type(argument, schema);
      return constant_of(*device);
    }
    case c10::TypeKind::GeneratorType: {
      if (argument.kind_case() != Argument::kGenerator) return wrong_type(argument, schema);
      ArgumentPlan plan;
      plan.kind = Kind::kGenerator;
      return plan;
    }
    default:
      return wrong_type(argument, schema);
  }
}

// Returns the length of a list; 0 for anything else.
int list_length(const Argument& argument) {
  switch (argument.kind_case()) {
    case Argument::kValues:
      return argument.values().ids_size();
    case Argument::kIntegers:
      return argument.integers().items_size();
    case Argument::kNumbers:
      return argument.numbers().items_size();
    case Argument::kBooleans:
      return argument.booleans().items_size();
    case Argument::kScalars:
      return argument.scalars().items_size();
    default:
      return 0;
  }
}

// Formats at most eight items.
template <typename Items>
std::string format_list(const Items& items) {
  constexpr int kShown = 8;
  const int shown = std::min<int>(items.size(), kShown);
  return absl::StrCat("[", absl::StrJoin(items.begin(), items.begin() + shown, ", "),
                      items.size() > kShown ? ", …]" : "]");
}

}  // namespace

void encode_argument(const c10::IValue& argument, const ValueOf& value_of, Argument* out) {
  if (argument.isNone()) {
    out->set_none(true);
  } else if (argument.isTensor()) {
    const int64_t value = value_of(argument.toTensor());
    value < 0 ? out->set_none(true) : out->set_value(static_cast<uint32_t>(value));
  } else if (argument.isScalar()) {
    encode_scalar(argument, out);
  } else if (argument.isString()) {
    out->set_text(argument.toStringRef());
  } else if (argument.isDevice()) {
    out->set_device(argument.toDevice().str());
  } else if (argument.isGenerator()) {
    out->set_generator(true);
  } else if (argument.isList()) {
    encode_list(argument, value_of, out);
  } else {
    throw Error(ErrorCode::kUnimplemented, absl::StrCat("an argument of type ", argument.tagKind(),
                                                        " cannot be part of a graph"));
  }
}

absl::StatusOr<ArgumentPlan> decode_argument(const Argument& argument,
                                             const c10::Argument& schema) {
  if (list_length(argument) > kMaxListLength) {
    return make_status(
        ErrorCode::kInvalidArgument,
        absl::StrCat("argument '", schema.name(), "' is a list of ", list_length(argument),
                     " entries; at most ", kMaxListLength, " are allowed"));
  }
  // Autograd passes undefined tensors to kernels whose schemas ask for a tensor.
  if (argument.has_none() && schema.type()->kind() == c10::TypeKind::TensorType) {
    return constant_of(at::Tensor());
  }
  return decode_as(argument, schema, schema.type());
}

std::string format_argument(const Argument& argument) {
  switch (argument.kind_case()) {
    case Argument::kNone:
      return "none";
    case Argument::kValue:
      return absl::StrCat("%", argument.value());
    case Argument::kValues: {
      std::vector<std::string> names;
      for (int64_t id : argument.values().ids()) {
        names.push_back(id < 0 ? "none" : absl::StrCat("%", id));
      }
      return format_list(names);
    }
    case Argument::kInteger:
      return absl::StrCat(argument.integer());
    case Argument::kIntegers:
      return format_list(argument.integers().items());
    case Argument::kNumber:
      return absl::StrCat(argument.number());
    case Argument::kNumbers:
      return format_list(argument.numbers().items());
    case Argument::kBoolean:
      return argument.boolean() ? "true" : "false";
    case Argument::kBooleans:
      return format_list(argument.booleans().items());
    case Argument::kText:
      return absl::StrCat("'", argument.text(), "'");
    case Argument::kDevice:
      return argument.device();
    case Argument::kComplex:
      return absl::StrCat(argument.complex().real(), "+", argument.complex().imaginary(), "i");
    case Argument::kGenerator:
      return "the step's generator";
    case Argument::kScalars: {
      std::vector<std::string> names;
      for (const Argument& item : argument.scalars().items()) {
        names.push_back(format_argument(item));
      }
      return format_list(names);
    }
    case Argument::KIND_NOT_SET:
      return "missing";
  }
  return "missing";
}

}  // namespace trireme::internal
