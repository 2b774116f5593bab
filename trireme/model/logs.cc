#include "trireme/model/logs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "trireme/base/error.h"
#include "trireme/model/json_number.h"

namespace trireme {
namespace {

// Returns the entry of this name, or null.
template <typename Entries>
auto find_entry(Entries& entries, std::string_view name) {
  const auto entry = std::ranges::find(entries, name, [](const auto& one) { return one.first; });
  return entry == entries.end() ? nullptr : &*entry;
}

template <typename Entries>
Error no_figure(const char* where, std::string_view name, const Entries& entries) {
  const std::string names = absl::StrJoin(
      entries, ", ", [](std::string* out, const auto& one) { out->append(one.first); });
  return Error(ErrorCode::kNotFound,
               absl::StrCat(where, " no figure '", std::string(name),
                            "'; the figures are: ", names.empty() ? "none" : names));
}

}  // namespace

double Logs::operator[](std::string_view name) const {
  if (const auto* entry = find_entry(entries_, name)) return entry->second;
  throw no_figure("the logs have", name, entries_);
}

bool Logs::contains(std::string_view name) const {
  return find_entry(entries_, name) != nullptr;
}

void Logs::set(std::string name, double value) {
  if (auto* entry = find_entry(entries_, name)) {
    entry->second = value;
  } else {
    entries_.emplace_back(std::move(name), value);
  }
}

const std::vector<double>& History::operator[](std::string_view name) const {
  if (const auto* entry = find_entry(figures_, name)) return entry->second;
  throw no_figure("the history has", name, figures_);
}

bool History::contains(std::string_view name) const {
  return find_entry(figures_, name) != nullptr;
}

std::vector<std::string> History::names() const {
  std::vector<std::string> names;
  for (const auto& [name, values] : figures_) names.push_back(name);
  return names;
}

void History::add(int64_t epoch, const Logs& logs) {
  epochs_.push_back(epoch);
  for (const auto& [name, value] : logs.entries()) {
    if (auto* entry = find_entry(figures_, name)) {
      entry->second.push_back(value);
    } else {
      figures_.emplace_back(name, std::vector<double>{value});
    }
  }
}

std::string History::to_json() const {
  // An array of pairs, since the members of a JSON object have no order.
  nlohmann::json figures = nlohmann::json::array();
  for (const auto& [name, values] : figures_) {
    nlohmann::json numbers = nlohmann::json::array();
    for (const double value : values) numbers.push_back(internal::json_number(value));
    figures.push_back({name, std::move(numbers)});
  }
  return nlohmann::json{{"epochs", epochs_}, {"figures", std::move(figures)}}.dump();
}

History History::from_json(const std::string& json) {
  try {
    const nlohmann::json parsed = nlohmann::json::parse(json);
    History history;
    history.epochs_ = parsed.at("epochs").get<std::vector<int64_t>>();
    for (const nlohmann::json& figure : parsed.at("figures")) {
      std::vector<double> values;
      for (const nlohmann::json& value : figure.at(1)) {
        values.push_back(internal::read_json_number(value));
      }
      history.figures_.emplace_back(figure.at(0).get<std::string>(), std::move(values));
    }
    return history;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInvalidArgument,
                absl::StrCat("the text is not a history: ", error.what(),
                             ". Pass a text that History::to_json() has returned"));
  }
}

}  // namespace trireme
