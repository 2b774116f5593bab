#pragma once

// The one header that a program includes. It needs no header of protobuf, gRPC or abseil.
#include "trireme/base/error.h"
#include "trireme/base/version.h"
#include "trireme/cluster/cluster_spec.h"
#include "trireme/cluster/device_spec.h"
#include "trireme/cluster/flags.h"
#include "trireme/cluster/resolver.h"
#include "trireme/cluster/task_id.h"
#include "trireme/server/in_process_cluster.h"
#include "trireme/server/server.h"
#include "trireme/version.h"
