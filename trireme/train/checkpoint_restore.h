#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/train/checkpoint_objects.h"
#include "trireme/train/restore_options.h"

namespace trireme::internal {

// Decides which parts of a checkpoint go to which objects, and restores them.
class CheckpointRestore {
 public:
  // Compares the checkpoint with the objects. Throws INVALID_ARGUMENT, which lists all differences,
  // unless the options say partial. Steps must be paused until the object is destroyed. The
  // arguments must outlive it. `names` are the names of the objects' variables in the checkpoint.
  CheckpointRestore(const CheckpointObjects& objects, const CheckpointReader& reader,
                    const RestoreOptions& options, const std::vector<std::string>& names);

  // Reads what is assigned to the program's variables, and lets the servers load theirs. Throws
  // Error; only variables on servers may have changed then.
  void read();
  // Sets the program's own state, after read(). Throws the errors of iterators, and of the
  // functions that take texts.
  void assign();

 private:
  // A variable that is restored.
  struct Restored {
    const CheckpointedVariable& target;
    const SavedVariable& saved;
    bool slots = false;  // True if the state of its optimizer is restored too.
  };
  struct RestoredIterator {
    const CheckpointedIterator& target;
    const SavedIterator& saved;
  };
  struct RestoredText {
    const CheckpointedText& target;
    const std::string& saved;
  };

  void match_variables();
  void match_iterators();
  void match_texts();
  // Returns false, and adds to the differences, if the contents of the variable differ in kind.
  bool fits(const CheckpointedVariable& target, const SavedVariable& saved);
  bool same_state(const CheckpointedVariable& target, const SavedVariable& saved);
  bool fits(const CheckpointedIterator& target, const SavedIterator& saved);
  // Returns the number of workers that draw from the iterator.
  size_t workers_of(const CheckpointedIterator& target) const;

  void load_server_variables() const;
  void restore_optimizers() const;

  const CheckpointObjects& objects_;
  const CheckpointReader& reader_;
  const RestoreOptions& options_;
  const std::vector<std::string>& names_;
  std::vector<std::string> differences_;
  std::vector<Restored> variables_;
  std::vector<RestoredIterator> iterators_;
  std::vector<RestoredText> texts_;
  // Variables in the program's memory, and the values that read() has read for them.
  std::vector<std::pair<const Variable*, at::Tensor>> values_;
};

}  // namespace trireme::internal
