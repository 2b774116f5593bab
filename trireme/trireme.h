#pragma once

// The one header that a program includes. It needs no header of protobuf, gRPC or abseil.
#include "trireme/base/error.h"
#include "trireme/base/version.h"
#include "trireme/version.h"
