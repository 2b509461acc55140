// The parameters of route.metal, shared by host and device.
#pragma once

#include "simt/shared.h"

namespace moeblas {
namespace simt {

// Threadgroup memory of a token holds so many experts and groups; more are kept in the workspace.
enum { kRouteTokens = 4, kNearExperts = 1024, kNearGroups = 64 };

// Strides in elements.
struct RouteParams {
  int64_t tokens;
  int64_t logits_stride[2];
  int64_t bias_stride;
  int64_t ids_stride;
  int64_t weights_stride;
  uint32_t experts;
  uint32_t top_k;
  uint32_t groups;
  uint32_t open_groups;
  int32_t logits_type;
  uint32_t sigmoid;
  uint32_t normalize;
  uint32_t has_bias;
  uint32_t in_workspace;
  float scaling_factor;
};

}  // namespace simt
}  // namespace moeblas
