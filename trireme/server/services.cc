#include "trireme/server/services.h"

#include "trireme/coordinator/closure_service.h"
#include "trireme/ps/variable_service.h"
#include "trireme/runtime/graph_service.h"
#include "trireme/runtime/server_service.h"

namespace trireme {

std::vector<ServiceFactory> all_services() {
  return {
      make_server_service,
      make_graph_service,
      [](TaskContext& context) { return make_variable_service(context); },
      make_closure_service,
  };
}

}  // namespace trireme
