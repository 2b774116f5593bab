#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/model/callback.h"

namespace trireme {

// Options of CsvLog.
struct CsvLogOptions {
  // True to add to a file that exists, false to replace it.
  bool append = false;
  // Character between two fields.
  char separator = ',';
};

// Writes the figures of each epoch to a CSV file, which spreadsheets and data frames read:
//
//   model.fit(x, y, {.epochs = 5, .callbacks = {tr::CsvLog("log.csv")}});
//
// The first line has the names: "epoch", whose numbers begin with 0, then those of the figures. A
// figure that an epoch does not have is an empty field. The file is replaced when the first epoch
// ends. A fit that continues from a checkpoint removes the lines of the epochs that it repeats.
//
// Throws Error, which names the file, if it cannot be written, for example since the disk is full;
// this ends the fit. Of several workers that train together, worker 0 writes the file.
class CsvLog : public Callback {
 public:
  // Makes the callback. Throws Error if the path is empty.
  explicit CsvLog(std::string path, CsvLogOptions options = {});

  void on_train_begin(Fit& fit) override;
  void on_epoch_end(Fit& fit, Logs& logs) override;
  std::string save() const override;
  void restore(const std::string& state) override;

 private:
  // Replaces the file by these lines, the first of which are the names.
  void open(std::vector<std::string> lines);
  std::string header() const;

  std::string path_;
  CsvLogOptions options_;
  std::vector<std::string> columns_;  // Names of the figures in the file, without the epoch.
  int64_t rows_ = 0;                  // Number of lines after the header.
  bool writes_ = true;   // False on a worker other than the chief, which writes nothing.
  bool opened_ = false;  // True once columns_ and rows_ are those of the file.
};

}  // namespace trireme
