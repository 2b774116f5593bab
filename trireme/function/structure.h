#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/function/draws.h"

// Takes the arguments and results of captured functions apart into tensors and puts them together
// again. Supports tensors, numbers, enums and strings, and vectors, pairs, tuples, optionals and
// string maps of supported types. For a type of your own, specialise Structure.
namespace trireme {
namespace internal {

// Appends the signature of a tensor: "Float[32, 64]", with the strides if it is not contiguous.
void append_tensor_signature(const at::Tensor& tensor, std::string& signature);

// The parts of a value that was taken apart.
struct Flattened {
  std::vector<at::Tensor> tensors;
  std::string signature;   // everything except the contents of the tensors
  ElementSources sources;  // sources of elements in the value, each once

  // Adds a source, unless it was added before, and returns its index.
  size_t add_source(const std::shared_ptr<ElementSource>& source) {
    const auto found = std::find(sources.begin(), sources.end(), source);
    const size_t index = found - sources.begin();
    if (found == sources.end()) sources.push_back(source);
    return index;
  }
};

// Hands out the tensors, one after the other, that replace those of a value, and the sources that
// replace its sources. The vector and the map must outlive it.
class TensorCursor {
 public:
  using Drawn = std::map<std::shared_ptr<ElementSource>, std::shared_ptr<DrawnElements>>;

  explicit TensorCursor(const std::vector<at::Tensor>& tensors, const Drawn* drawn = nullptr)
      : next_(tensors.begin()), drawn_(drawn) {}
  // Returns the next tensor.
  at::Tensor next() { return *next_++; }
  // Returns the replacement of a source.
  std::shared_ptr<ElementSource> drawn_from(const std::shared_ptr<ElementSource>& source) const {
    return drawn_->at(source);
  }

 private:
  std::vector<at::Tensor>::const_iterator next_;
  const Drawn* drawn_;
};

}  // namespace internal

// Says how a type is taken apart. A specialisation has three members:
//
//   kTensorsOnly   true if a value holds nothing but tensors, so that a function may return it
//   flatten()      appends the tensors of a value in a fixed order, and everything else to the
//                  signature
//   replace()      returns a copy of a value with the cursor's tensors in place of its own
//
// Parts that are not tensors are constants of the graph, and another value of them leads to another
// capture. Sources of elements are the exception: each step draws from them anew.
template <typename T, typename = void>
struct Structure {
  static_assert(std::is_void_v<T>,
                "a captured function takes tensors, numbers, strings, and vectors, pairs, tuples, "
                "optionals and string maps of them");
};

template <>
struct Structure<at::Tensor> {
  static constexpr bool kTensorsOnly = true;
  static void flatten(const at::Tensor& value, internal::Flattened& out) {
    out.tensors.push_back(value);
    internal::append_tensor_signature(value, out.signature);
  }
  static at::Tensor replace(const at::Tensor&, internal::TensorCursor& reader) {
    return reader.next();
  }
};

template <typename T>
struct Structure<T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                                     std::is_same_v<T, std::string>>> {
  static constexpr bool kTensorsOnly = false;
  static void flatten(const T& value, internal::Flattened& out) {
    std::ostringstream text;
    text.precision(17);
    if constexpr (std::is_enum_v<T>) {
      text << static_cast<long long>(value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      text << value.size() << ':' << value;
    } else {
      text << +value;
    }
    out.signature += '=';
    out.signature += text.str();
  }
  static T replace(const T& value, internal::TensorCursor&) { return value; }
};

template <typename T>
struct Structure<std::vector<T>> {
  static constexpr bool kTensorsOnly = Structure<T>::kTensorsOnly;
  static void flatten(const std::vector<T>& value, internal::Flattened& out) {
    out.signature += '[';
    for (const T& item : value) {
      Structure<T>::flatten(item, out);
      out.signature += ',';
    }
    out.signature += ']';
  }
  static std::vector<T> replace(const std::vector<T>& value, internal::TensorCursor& reader) {
    std::vector<T> result;
    result.reserve(value.size());
    for (const T& item : value) result.push_back(Structure<T>::replace(item, reader));
    return result;
  }
};

template <typename T>
struct Structure<std::optional<T>> {
  static constexpr bool kTensorsOnly = Structure<T>::kTensorsOnly;
  static void flatten(const std::optional<T>& value, internal::Flattened& out) {
    out.signature += value ? '+' : '-';
    if (value) Structure<T>::flatten(*value, out);
  }
  static std::optional<T> replace(const std::optional<T>& value, internal::TensorCursor& reader) {
    return value ? std::optional<T>(Structure<T>::replace(*value, reader)) : std::nullopt;
  }
};

template <typename T>
struct Structure<std::map<std::string, T>> {
  static constexpr bool kTensorsOnly = Structure<T>::kTensorsOnly;
  static void flatten(const std::map<std::string, T>& value, internal::Flattened& out) {
    out.signature += '{';
    for (const auto& [key, item] : value) {
      Structure<std::string>::flatten(key, out);
      Structure<T>::flatten(item, out);
    }
    out.signature += '}';
  }
  static std::map<std::string, T> replace(const std::map<std::string, T>& value,
                                          internal::TensorCursor& reader) {
    std::map<std::string, T> result;
    for (const auto& [key, item] : value) result[key] = Structure<T>::replace(item, reader);
    return result;
  }
};

template <typename... T>
struct Structure<std::tuple<T...>> {
  static constexpr bool kTensorsOnly = (Structure<T>::kTensorsOnly && ...);
  static void flatten(const std::tuple<T...>& value, internal::Flattened& out) {
    out.signature += '(';
    std::apply(
        [&](const T&... item) { ((Structure<T>::flatten(item, out), out.signature += ','), ...); },
        value);
    out.signature += ')';
  }
  static std::tuple<T...> replace(const std::tuple<T...>& value, internal::TensorCursor& reader) {
    // Braces fix the order of evaluation, and so the order in which tensors are taken.
    return std::apply(
        [&](const T&... item) { return std::tuple<T...>{Structure<T>::replace(item, reader)...}; },
        value);
  }
};

template <typename A, typename B>
struct Structure<std::pair<A, B>> {
  static constexpr bool kTensorsOnly = Structure<A>::kTensorsOnly && Structure<B>::kTensorsOnly;
  static void flatten(const std::pair<A, B>& value, internal::Flattened& out) {
    Structure<A>::flatten(value.first, out);
    out.signature += '|';
    Structure<B>::flatten(value.second, out);
  }
  static std::pair<A, B> replace(const std::pair<A, B>& value, internal::TensorCursor& reader) {
    A first = Structure<A>::replace(value.first, reader);
    return {std::move(first), Structure<B>::replace(value.second, reader)};
  }
};

}  // namespace trireme
