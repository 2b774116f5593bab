#include "trireme/cluster/slurm_nodelist.h"

#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trireme/cluster/text.h"

namespace trireme::internal {
namespace {

constexpr size_t kMaxNameLength = 255;  // limit of the domain name system

// Splits the text at the commas outside of brackets.
std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names(1);
  bool inside = false;
  for (const char c : text) {
    if (c == '[' || c == ']') {
      if (inside == (c == '[')) refuse("brackets do not match");
      inside = !inside;
    }
    if (c == ',' && !inside) {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  if (inside) refuse("a '[' has no ']'");
  return names;
}

// A number or a range inside brackets, "01-03".
struct Range {
  int first = 0;
  int last = 0;
  size_t width = 0;  // minimum number of digits, filled with zeros

  explicit Range(const std::string& text) {
    const size_t dash = text.find('-');
    const std::string low = text.substr(0, dash);
    const std::string high = dash == text.npos ? low : text.substr(dash + 1);
    const std::optional<int> from = parse_int(low), to = parse_int(high);
    if (!from || !to || *to < *from)
      refuse(absl::StrCat("'", text, "' is not a valid range of numbers"));
    if (*to - *from >= kMaxTasks) {
      refuse(absl::StrCat("the range '", text, "' has more than ", kMaxTasks, " nodes"));
    }
    if (low.size() > kMaxNameLength) refuse("a number is too long");
    first = *from, last = *to, width = low.size();
  }

  std::string number(int value) const {
    std::string digits = std::to_string(value);
    return std::string(width > digits.size() ? width - digits.size() : 0, '0') + digits;
  }
};

// Appends each number in the brackets to each of the names.
std::vector<std::string> append_numbers(const std::vector<std::string>& names,
                                        const std::string& inside) {
  std::vector<Range> ranges;
  int64_t size = 0;
  for (const std::string& text : std::vector<std::string>(absl::StrSplit(inside, ','))) {
    ranges.emplace_back(text);
    size += ranges.back().last - ranges.back().first + 1;
  }
  if (size * static_cast<int64_t>(names.size()) > kMaxTasks) {
    refuse(absl::StrCat("it has more than ", kMaxTasks, " nodes"));
  }
  std::vector<std::string> longer;
  for (const std::string& name : names) {
    for (const Range& range : ranges) {
      for (int i = range.first; i <= range.last; ++i) longer.push_back(name + range.number(i));
    }
  }
  return longer;
}

std::vector<std::string> expand_name(const std::string& text) {
  std::vector<std::string> names(1);
  size_t at = 0;
  while (at < text.size()) {
    if (text[at] == '[') {
      const size_t close = text.find(']', at);
      names = append_numbers(names, text.substr(at + 1, close - at - 1));
      at = close + 1;
    } else {
      for (std::string& name : names) name += text[at];
      ++at;
    }
    if (names[0].size() > kMaxNameLength) refuse("a name is too long");
  }
  return names;
}

}  // namespace

std::vector<std::string> expand_nodelist(const std::string& text) {
  std::vector<std::string> hosts;
  for (const std::string& name : split_names(text)) {
    if (name.empty()) refuse("a name is empty");
    for (std::string& host : expand_name(name)) hosts.push_back(std::move(host));
    if (hosts.size() > kMaxTasks) refuse(absl::StrCat("it has more than ", kMaxTasks, " nodes"));
  }
  return hosts;
}

std::vector<int> expand_tasks_per_node(const std::string& text) {
  std::vector<int> counts;
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const size_t open = entry.find("(x");
    std::optional<int> times = 1;
    if (open != entry.npos) {
      times = entry.back() == ')' ? parse_int(entry.substr(open + 2, entry.size() - open - 3))
                                  : std::nullopt;
    }
    const std::optional<int> tasks = parse_int(entry.substr(0, open));
    if (!tasks || !times || *tasks > kMaxTasks || *times > kMaxTasks) {
      refuse(absl::StrCat("'", entry, "' is not a valid number of tasks; write 2 or 2(x3)"));
    }
    counts.insert(counts.end(), *times, *tasks);
    if (counts.size() > kMaxTasks) refuse(absl::StrCat("it has more than ", kMaxTasks, " nodes"));
  }
  return counts;
}

}  // namespace trireme::internal
