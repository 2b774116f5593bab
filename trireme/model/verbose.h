#pragma once

namespace trireme {

// How fit() and evaluate() show their progress.
enum class Verbose {
  // kBar on a terminal if steps run in this process, otherwise kLines. Of several workers that
  // train
  // together, only worker 0 shows it.
  kAuto,
  kSilent,  // nothing
  kBar,     // a bar that moves while an epoch runs
  kLines,   // one line for each epoch
};

}  // namespace trireme
