#include "trireme/base/version.h"

namespace trireme {

const char* version() {
  return TRIREME_VERSION;
}

}  // namespace trireme
