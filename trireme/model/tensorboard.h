#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "trireme/model/callback.h"

namespace trireme {

// Options of TensorBoard.
struct TensorBoardOptions {
  // Number of epochs from one set of histograms of the variables to the next. 0 for none.
  int64_t histogram_freq = 0;
  // Number of steps from one record of the figures of the epoch so far to the next. 0 to record
  // only the figures of whole epochs.
  int64_t update_freq = 0;
  // Texts in Markdown, by their tags, which are recorded before the first epoch.
  std::map<std::string, std::string> text = {};
};

// Records the figures of a fit() in event files, which TensorBoard shows:
//
//   model.fit(x, y, {.epochs = 5, .callbacks = {tr::TensorBoard("logs", {.histogram_freq = 1})}});
//
//   tensorboard --logdir logs
//
// The folder gets two runs, "train" and "validation", with the tags of Keras: "epoch_loss" and one
// for each metric, "epoch_learning_rate", and with `update_freq` "batch_loss" and so on, by the
// number of the step. A variable "fc1.weight" has its histograms under "fc1/weight/histogram".
//
// Each process writes new files. A fit that continues from a checkpoint removes the records of the
// steps that it repeats. Copies write to the same files. Throws Error, which names the file, if one
// cannot be written, for example since the disk is full; this ends the fit. Of several workers that
// train together, worker 0 writes the files.
class TensorBoard : public Callback {
 public:
  // Makes the callback. Throws Error if an option is not valid.
  explicit TensorBoard(std::string folder, TensorBoardOptions options = {});

  void on_train_begin(Fit& fit) override;
  void on_epoch_begin(Fit& fit) override;
  void on_epoch_end(Fit& fit, Logs& logs) override;
  void on_batch_end(Fit& fit, const Logs& logs) override;
  void on_train_end(Fit& fit, const Logs& logs) override;
  std::string save() const override;
  void restore(const std::string& state) override;

 private:
  class Runs;

  TensorBoardOptions options_;
  std::shared_ptr<Runs> runs_;
  bool writes_ = true;     // False on a worker other than the chief, which writes nothing.
  int64_t last_step_ = 0;  // Number of steps at the last call for a batch.
};

}  // namespace trireme
