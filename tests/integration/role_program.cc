// One program for every role, as a user writes it. It runs a server if its task is one, and
// otherwise acts as the chief.
#include <iostream>

#include "trireme/trireme.h"

namespace tr = trireme;

int main(int argc, char** argv) try {
  const tr::Flags flags(argc, argv);
  const tr::Cluster me = tr::resolve(flags);
  if (me.is_server()) {
    std::cout << "serving " << *me.task << std::endl;
    return tr::Server(me).join();
  }
  std::cout << "the chief of " << me.spec.all_tasks().size() << " tasks" << std::endl;
  return 5;
} catch (const tr::Error& error) {
  std::cerr << error.what() << "\n";
  return 2;
}
