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

// How arguments and results of captured functions are taken apart into tensors and put together
// again. Known: tensors, numbers, strings, and vectors, pairs, tuples, optionals and string maps of
// what is known. A type of one's own specialises Structure.
namespace trireme {
namespace internal {

// "float32[32, 64]", with strides where they are not the usual ones.
void append_tensor_signature(const at::Tensor& tensor, std::string& signature);

struct Flattened {
  std::vector<at::Tensor> tensors;
  std::string signature;   // everything but the tensors' contents
  ElementSources sources;  // what elements are drawn from, each once

  // Which of the sources it is.
  size_t add_source(const std::shared_ptr<ElementSource>& source) {
    const auto found = std::find(sources.begin(), sources.end(), source);
    const size_t index = found - sources.begin();
    if (found == sources.end()) sources.push_back(source);
    return index;
  }
};

// Hands out other tensors, and what stands for the sources.
class TensorCursor {
 public:
  using Drawn = std::map<std::shared_ptr<ElementSource>, std::shared_ptr<DrawnElements>>;

  explicit TensorCursor(const std::vector<at::Tensor>& tensors, const Drawn* drawn = nullptr)
      : next_(tensors.begin()), drawn_(drawn) {}
  at::Tensor next() { return *next_++; }
  std::shared_ptr<ElementSource> drawn_from(const std::shared_ptr<ElementSource>& source) const {
    return drawn_->at(source);
  }

 private:
  std::vector<at::Tensor>::const_iterator next_;
  const Drawn* drawn_;
};

}  // namespace internal

// flatten() appends the tensors in a fixed order; replace() gives a copy with other tensors in
// their places. Whatever is not a tensor is part of the signature, and so a constant of the graph;
// but for sources of elements, which each step draws from.
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
    // Braces fix the order in which the reader is read.
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
