#include "trireme/data/listed_texts.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trireme::internal {
namespace {

constexpr size_t kMostListedTexts = 10;
constexpr size_t kMostListedBytes = 40;

}  // namespace

std::string listed_texts(const std::vector<const std::string*>& texts) {
  const size_t listed = std::min(texts.size(), kMostListedTexts);
  const auto write = [](std::string* out, const std::string* text) {
    absl::StrAppend(out, "'", absl::CHexEscape(text->substr(0, kMostListedBytes)),
                    text->size() > kMostListedBytes ? "…'" : "'");
  };
  const std::string list = absl::StrJoin(std::span(texts).first(listed), ", ", write);
  if (listed == texts.size()) return list;
  return absl::StrCat(list, " and ", texts.size() - listed, " more");
}

}  // namespace trireme::internal
