#include "tests/fuzz/operators/call.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>

namespace trireme::fuzz {
namespace {

struct Dtype {
  const char* name;
  c10::ScalarType type;
};
constexpr Dtype kDtypes[] = {
    {"f32", at::kFloat},     {"f64", at::kDouble},       {"f16", at::kHalf},
    {"bf16", at::kBFloat16}, {"i8", at::kChar},          {"i16", at::kShort},
    {"i32", at::kInt},       {"i64", at::kLong},         {"u8", at::kByte},
    {"bool", at::kBool},     {"c64", at::kComplexFloat}, {"c128", at::kComplexDouble}};
constexpr int64_t kMaxItems = 40;  // elements of a tensor whose contents are written out

using Numbers = std::vector<int64_t>;

[[noreturn]] void fail(const std::string& why) {
  throw std::runtime_error(why);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  int depth = 0;
  std::string part;
  for (char c : text) {
    depth += c == '[' || c == '<' || c == '(' || c == '{';
    depth -= c == ']' || c == '>' || c == ')' || c == '}';
    if (c == separator && depth == 0) {
      parts.push_back(std::move(part));
      part.clear();
    } else {
      part += c;
    }
  }
  if (!part.empty() || !parts.empty()) parts.push_back(std::move(part));
  return parts;
}

Numbers numbers(const std::string& text) {
  Numbers items;
  for (const std::string& item : split(text, ',')) items.push_back(std::stoll(item));
  return items;
}

std::string join(at::IntArrayRef items) {
  std::string text;
  for (int64_t item : items) text += (text.empty() ? "" : ",") + std::to_string(item);
  return text;
}

std::string text_of(double number) {
  std::ostringstream out;
  out.precision(17);
  out << number;
  std::string text = out.str();
  // The point distinguishes a double from an integer.
  if (text.find_first_of(".enai") == std::string::npos) text += ".0";
  return text;
}

// Returns the number of elements from the first to the last one of a strided tensor.
int64_t extent(const Numbers& sizes, const Numbers& strides) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return last + 1;
}

// Fills `row` with `items`, repeated as needed, or with random numbers if there are none.
void fill(at::Tensor& row, const Numbers& items, double low, double high, std::mt19937_64& random) {
  if (row.numel() == 0) return;
  if (row.is_complex()) {
    const int64_t count = 2 * row.numel();
    std::uniform_real_distribution<double> draw(low, high);
    for (int64_t i = 0; i < count; ++i) {
      if (row.scalar_type() == at::kComplexFloat) {
        static_cast<float*>(row.mutable_data_ptr())[i] = static_cast<float>(draw(random));
      } else {
        static_cast<double*>(row.mutable_data_ptr())[i] = draw(random);
      }
    }
    return;
  }
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, row.scalar_type(), "fill", [&] {
    scalar_t* data = row.mutable_data_ptr<scalar_t>();
    std::uniform_real_distribution<double> draw(low, high);
    std::uniform_int_distribution<int64_t> draw_whole(static_cast<int64_t>(low),
                                                      static_cast<int64_t>(high));
    for (int64_t i = 0; i < row.numel(); ++i) {
      if (!items.empty()) {
        data[i] = static_cast<scalar_t>(items[i % items.size()]);
      } else if (row.is_floating_point()) {
        data[i] = static_cast<scalar_t>(draw(random));
      } else {
        data[i] = static_cast<scalar_t>(draw_whole(random));
      }
    }
  });
}

at::Tensor make_tensor(const std::string& token, std::mt19937_64& random) {
  const size_t open = token.find('['), close = token.find(']');
  if (open == std::string::npos || close == std::string::npos) fail("not a tensor: " + token);
  const std::string name = token.substr(0, open);
  const Numbers sizes = numbers(token.substr(open + 1, close - open - 1));
  std::string rest = token.substr(close + 1);
  if (name == "coo") {
    const auto parts = split(rest.substr(1, rest.size() - 2), '|');
    if (parts.size() != 2) fail("not a sparse tensor: " + token);
    const at::Tensor indices = make_tensor(parts[0], random);
    return at::_sparse_coo_tensor_unsafe(indices, make_tensor(parts[1], random), sizes);
  }
  const auto* dtype =
      std::ranges::find_if(kDtypes, [&](const Dtype& known) { return name == known.name; });
  if (dtype == std::end(kDtypes)) fail("unknown dtype: " + token);
  Numbers strides(sizes.size(), 1), items;
  for (size_t i = sizes.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
  double low = at::isIntegralType(dtype->type, true) ? 0 : -1, high = 1;
  while (!rest.empty()) {
    const size_t end = rest.find_first_of(rest[0] == '~' ? "=/" : "=~/", 1);
    const std::string part = rest.substr(1, end == std::string::npos ? end : end - 1);
    if (rest[0] == '/') strides = numbers(part);
    if (rest[0] == '=') items = numbers(part);
    if (rest[0] == '~') {
      const size_t middle = part.find('~');
      low = std::stod(part.substr(0, middle));
      high = std::stod(part.substr(middle + 1));
    }
    rest = end == std::string::npos ? "" : rest.substr(end);
  }
  at::Tensor row = at::empty({extent(sizes, strides)}, dtype->type);
  fill(row, items, low, high, random);
  return at::as_strided(row, sizes, strides);
}

std::optional<at::Tensor> make_optional_tensor(const std::string& token, std::mt19937_64& random) {
  if (token == "-") return std::nullopt;
  return make_tensor(token, random);
}

c10::IValue make_scalar(const std::string& token) {
  if (token == "true" || token == "false") return token == "true";
  if (token.back() == 'i') {
    const size_t plus = token.find_last_of("+-", token.size() - 2);
    const size_t split_at = plus == std::string::npos ? 0 : plus;
    return c10::complex<double>(std::stod(token.substr(0, split_at)),
                                std::stod(token.substr(split_at)));
  }
  if (token.find_first_of(".enai") != std::string::npos) return std::stod(token);
  return static_cast<int64_t>(std::stoll(token));
}

c10::IValue make_list(const std::string& token, const c10::TypePtr& element,
                      std::mt19937_64& random) {
  if (token.size() < 2) fail("not a list: " + token);
  const std::string inside = token.substr(1, token.size() - 2);
  const auto parts = split(inside, token[0] == '{' ? ';' : ',');
  switch (element->kind()) {
    case c10::TypeKind::TensorType: {
      c10::List<at::Tensor> list;
      for (const auto& part : parts) list.push_back(make_tensor(part, random));
      return list;
    }
    case c10::TypeKind::OptionalType: {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& part : parts) list.push_back(make_optional_tensor(part, random));
      return list;
    }
    case c10::TypeKind::FloatType: {
      c10::List<double> list;
      for (const auto& part : parts) list.push_back(std::stod(part));
      return list;
    }
    case c10::TypeKind::BoolType: {
      c10::List<bool> list;
      for (const auto& part : parts) list.push_back(part == "true");
      return list;
    }
    case c10::TypeKind::NumberType: {
      c10::List<c10::Scalar> list;
      for (const auto& part : parts) list.push_back(make_scalar(part).toScalar());
      return list;
    }
    default:
      return c10::List<int64_t>(numbers(inside));
  }
}

c10::IValue make_argument(const std::string& token, const c10::TypePtr& type,
                          std::mt19937_64& random) {
  if (token == "-") {
    return type->kind() == c10::TypeKind::TensorType ? c10::IValue(at::Tensor()) : c10::IValue();
  }
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return make_argument(token, type->castRaw<c10::OptionalType>()->getElementType(), random);
    case c10::TypeKind::TensorType:
      return make_tensor(token, random);
    case c10::TypeKind::ListType:
      return make_list(token, type->castRaw<c10::ListType>()->getElementType(), random);
    case c10::TypeKind::StringType:
      return token.substr(1, token.size() - 2);
    case c10::TypeKind::DeviceObjType:
      return c10::Device(token);
    case c10::TypeKind::FloatType:
      return std::stod(token);
    default:
      return make_scalar(token);
  }
}

std::string format_tensor(const at::Tensor& tensor);

// Formats the contents of a tensor: a few integers as they are, other numbers by their range.
std::string format_contents(const at::Tensor& row) {
  if (row.numel() == 0 || row.scalar_type() == at::kBool || row.is_complex()) return "";
  if (!row.is_floating_point() && row.numel() <= kMaxItems) {
    const at::Tensor wide = row.to(at::kLong);
    return "=" + join({wide.const_data_ptr<int64_t>(), static_cast<size_t>(wide.numel())});
  }
  const auto [low, high] = at::aminmax(row.to(at::kDouble));
  const double least = low.item<double>(), most = high.item<double>();
  if (row.is_floating_point()) {
    // To a kernel it only matters on which side of 0 and 1 its arguments are.
    if (least >= 0 && most <= 1) return "~0~1";
    return least > 0 ? "~1~2" : "";
  }
  return "~" + std::to_string(static_cast<int64_t>(least)) + "~" +
         std::to_string(static_cast<int64_t>(most));
}

std::string format_dense(const at::Tensor& tensor) {
  const auto* dtype = std::ranges::find_if(
      kDtypes, [&](const Dtype& known) { return tensor.scalar_type() == known.type; });
  if (dtype == std::end(kDtypes)) return "";
  std::string text = std::string(dtype->name) + "[" + join(tensor.sizes()) + "]";
  const Numbers sizes = tensor.sizes().vec(), strides = tensor.strides().vec();
  if (!tensor.is_contiguous()) text += "/" + join(strides);
  return text + format_contents(
                    at::as_strided(tensor, {extent(sizes, strides)}, {1}, tensor.storage_offset()));
}

std::string format_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return "-";
  if (tensor.layout() == at::kSparse) {
    const std::string indices = format_dense(tensor._indices().contiguous());
    const std::string values = format_dense(tensor._values().contiguous());
    if (indices.empty() || values.empty()) return "";
    return "coo[" + join(tensor.sizes()) + "]<" + indices + "|" + values + ">";
  }
  return tensor.layout() == at::kStrided && tensor.device().is_cpu() ? format_dense(tensor) : "";
}

std::string format_scalar(const c10::IValue& scalar) {
  if (scalar.isBool()) return scalar.toBool() ? "true" : "false";
  if (scalar.isInt()) return std::to_string(scalar.toInt());
  if (scalar.isDouble()) return text_of(scalar.toDouble());
  if (!scalar.isComplexDouble()) return "";
  const auto complex = scalar.toComplexDouble();
  const std::string imaginary = text_of(complex.imag());
  return text_of(complex.real()) + (imaginary[0] == '-' ? "" : "+") + imaginary + "i";
}

std::string format_argument(const c10::IValue& argument) {
  if (argument.isNone() || argument.isGenerator()) return "-";
  if (argument.isTensor()) return format_tensor(argument.toTensor());
  if (argument.isString()) return "'" + argument.toStringRef() + "'";
  if (argument.isDevice()) return argument.toDevice().str();
  if (!argument.isList()) return format_scalar(argument);
  const auto kind = argument.toList().elementType()->kind();
  const bool tensors = kind == c10::TypeKind::TensorType || kind == c10::TypeKind::OptionalType;
  std::string text;
  for (const c10::IValue& item : argument.toListRef()) {
    const std::string part = format_argument(item);
    if (part.empty()) return "";
    text += (text.empty() ? "" : tensors ? ";" : ",") + part;
  }
  return tensors ? "{" + text + "}" : "(" + text + ")";
}

}  // namespace

std::string full_name(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

Arguments Call::make(uint64_t seed) const {
  std::mt19937_64 random(seed);
  Arguments arguments;
  for (size_t i = 0; i < tokens.size(); ++i) {
    arguments.push_back(make_argument(tokens[i], op.schema().arguments()[i].type(), random));
  }
  return arguments;
}

Call parse_call(const std::string& line) {
  std::vector<std::string> tokens = split(line, ' ');
  if (tokens.empty()) fail("an empty line");
  const std::string name = tokens.front();
  const size_t dot = name.find('.', name.find("::"));
  const auto op = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  if (!op) fail("unknown operator: " + line);
  tokens.erase(tokens.begin());
  if (tokens.size() != op->schema().arguments().size()) fail("wrong number of arguments: " + line);
  return {*op, std::move(tokens)};
}

std::vector<Call> read_calls(std::istream& in) {
  std::vector<Call> calls;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line[0] != '#') calls.push_back(parse_call(line));
  }
  return calls;
}

std::string format_call(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  std::string line = full_name(op);
  for (const c10::IValue& argument : arguments) {
    const std::string token = format_argument(argument);
    if (token.empty()) return "";
    line += " " + token;
  }
  return line;
}

}  // namespace trireme::fuzz
