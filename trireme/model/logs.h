#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

// Named figures in the order in which they are shown: "loss", then the metrics, then the same of
// the validation as "val_loss" and so on.
class Logs {
 public:
  // Returns a figure. Throws Error, which lists the names, if there is none of this name.
  double operator[](std::string_view name) const;
  // Returns true if there is a figure of this name.
  bool contains(std::string_view name) const;
  // Adds a figure, or replaces the one of this name.
  void set(std::string name, double value);
  // Returns the names and figures in their order.
  const std::vector<std::pair<std::string, double>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, double>> entries_;
};

// The figures of all epochs of a fit().
class History {
 public:
  // Returns a figure of each epoch that has it. Throws Error, which lists the names, if no epoch
  // has one of this name.
  const std::vector<double>& operator[](std::string_view name) const;
  // Returns true if an epoch has a figure of this name.
  bool contains(std::string_view name) const;
  // Returns the numbers of the epochs, from 0.
  const std::vector<int64_t>& epochs() const { return epochs_; }
  // Returns the names of the figures, in their order.
  std::vector<std::string> names() const;
  // Adds the figures of an epoch.
  void add(int64_t epoch, const Logs& logs);

  // Returns the history as JSON, and the history of such a text. Callbacks keep it in checkpoints.
  std::string to_json() const;
  // Returns the history that to_json() has written. Throws Error if it is malformed.
  static History from_json(const std::string& json);

 private:
  std::vector<int64_t> epochs_;
  std::vector<std::pair<std::string, std::vector<double>>> figures_;
};

}  // namespace trireme
