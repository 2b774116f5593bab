#pragma once

namespace trireme {

// How fit() and evaluate() show their progress.
enum class Verbose {
  kAuto,    // kBar on a terminal if steps run in this process, otherwise kLines
  kSilent,  // nothing
  kBar,     // a bar that moves while an epoch runs
  kLines,   // one line for each epoch
};

}  // namespace trireme
