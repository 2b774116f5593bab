#include "trireme/server/services.h"

#include "trireme/collective/group_service.h"
#include "trireme/coordinator/closure_service.h"
#include "trireme/optim/row_updates.h"
#include "trireme/ps/variable_service.h"
#include "trireme/runtime/graph_service.h"
#include "trireme/runtime/server_service.h"

namespace trireme {

std::vector<ServiceFactory> all_services(uint64_t memory_limit) {
  internal::register_row_updates();  // operators that graphs of client programs may contain
  return {
      make_server_service,
      make_graph_service,
      [memory_limit](TaskContext& context) {
        return memory_limit == 0 ? make_variable_service(context)
                                 : make_variable_service(context, {.memory_limit = memory_limit});
      },
      make_closure_service,
      make_collective_service,
  };
}

}  // namespace trireme
