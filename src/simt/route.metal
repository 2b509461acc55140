// route_simt: the top-k experts of every token and their weights (moe_route). A simdgroup takes a
// token. What an expert is chosen by becomes an unsigned key once, which lanes keep in threadgroup
// memory (in the workspace where there are very many experts): lane i owns experts i, i + 32, ...
// and nobody else reads them, so no barrier is needed. Picks follow each other in the order (key,
// then lower expert), and the next pick is the first one after the last, so nothing has to be
// crossed out; one pick costs a look at all keys and ten shuffles. With a few hundred experts the
// time is that of launching the kernel and of reading the logits.
//
// Scores are those of the CPU backend except for the last bits of exp and of the softmax's sum.
#include "formats/portable.h"
#include "simt/elements.h"
#include "simt/route_params.h"

namespace moeblas {
namespace simt {

// Keys order numbers as they compare; NaN is below all of them, and what is closed below NaN.
enum { kClosed = 0, kNanKey = 1 };

MB_GPU_FN uint key_of(float value) {
  if (formats::is_nan(value)) return uint(kNanKey);
  uint bits = formats::float_to_bits(value);
  if ((bits << 1) == 0u) bits = 0u;  // zeros are equal
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
MB_GPU_FN float value_of(uint key) {
  if (key == uint(kNanKey)) return formats::quiet_nan();
  return formats::bits_to_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

// A place in the order of picks.
struct Pick {
  uint key;
  uint index;

  MB_GPU_FN bool after(Pick other) const {
    return key < other.key || (key == other.key && index > other.index);
  }
};
// Before everything.
MB_GPU_FN Pick first_pick() {
  Pick p;
  p.key = 0xffffffffu;
  p.index = 0;
  return p;
}
MB_GPU_FN Pick no_pick() {
  Pick p;
  p.key = uint(kClosed);
  p.index = 0xffffffffu;
  return p;
}
// The foremost of all lanes' picks.
MB_GPU_FN Pick foremost(Pick mine) {
  Pick p;
  p.key = simd_max(mine.key);
  p.index = simd_min(mine.key == p.key ? mine.index : 0xffffffffu);
  return p;
}

// The keys of a token's experts, then those of its groups.
struct Keys {
  MB_TG uint* near_keys;
  MB_DEVICE uint* far_keys;
  bool far;

  MB_GPU_FN uint get(uint i) const { return far ? far_keys[i] : near_keys[i]; }
  MB_GPU_FN void set(uint i, uint key) const {
    if (far) {
      far_keys[i] = key;
    } else {
      near_keys[i] = key;
    }
  }
  // The foremost key of [begin, end) after `last`. Lanes look at their own.
  MB_GPU_FN Pick next(uint begin, uint end, Pick last, uint lane) const {
    Pick best = no_pick();
    for (uint i = begin + ((lane - begin) & 31u); i < end; i += 32u) {
      Pick p;
      p.key = get(i);
      p.index = i;
      if (p.key != uint(kClosed) && p.after(last) && best.after(p)) best = p;
    }
    return foremost(best);
  }
};

// What a logit is worth.
struct Scores {
  bool sigmoid;
  float max;
  float sum;

  MB_GPU_FN float of(float logit) const {
    return sigmoid ? 1.0f / (1.0f + metal::precise::exp(-logit))
                   : metal::precise::exp(logit - max) / sum;
  }
};

// The larger number, which NaN never is.
MB_GPU_FN float larger(float a, float b) { return b > a ? b : a; }

// One token, as a simdgroup sees it.
struct Token {
  MB_DEVICE const uchar* logits;
  MB_DEVICE const float* bias;
  long first;  // of its logits
  uint lane;

  MB_GPU_FN float logit(MB_CONST RouteParams& p, uint expert) const {
    return load_float(logits, p.logits_type, first + long(expert) * p.logits_stride[1]);
  }

  MB_GPU_FN Scores scores(MB_CONST RouteParams& p) const {
    Scores s;
    s.sigmoid = p.sigmoid != 0;
    s.max = formats::bits_to_float(0xff800000u);
    s.sum = 0.0f;
    if (s.sigmoid) return s;
    for (uint e = lane; e < p.experts; e += 32u) s.max = larger(s.max, logit(p, e));
    for (ushort distance = 16; distance > 0; distance = ushort(distance / 2)) {
      const float other = simd_shuffle_xor(s.max, distance);
      s.max = larger(s.max, other);
    }
    for (uint e = lane; e < p.experts; e += 32u) s.sum += metal::precise::exp(logit(p, e) - s.max);
    s.sum = simd_sum(s.sum);
    return s;
  }

  // Closes the experts of all groups but the best ones. A group's worth is the sum of its two best.
  MB_GPU_FN void close_groups(MB_CONST RouteParams& p, MB_THREAD const Keys& keys) const {
    const uint size = p.experts / p.groups;
    for (uint g = 0; g < p.groups; ++g) {
      const Pick best = keys.next(g * size, (g + 1) * size, first_pick(), lane);
      const Pick second = keys.next(g * size, (g + 1) * size, best, lane);
      float worth = value_of(best.key);
      if (size > 1) worth = formats::add(worth, value_of(second.key));
      if (((p.experts + g) & 31u) == lane) keys.set(p.experts + g, key_of(worth));
    }
    Pick last = first_pick();
    for (uint i = 0; i < p.open_groups; ++i)
      last = keys.next(p.experts, p.experts + p.groups, last, lane);
    for (uint g = 0; g < p.groups; ++g) {
      const uint owner = (p.experts + g) & 31u;
      Pick group;
      group.key = simd_broadcast(owner == lane ? keys.get(p.experts + g) : 0u, ushort(owner));
      group.index = p.experts + g;
      if (!group.after(last)) continue;
      for (uint e = g * size + ((lane - g * size) & 31u); e < (g + 1) * size; e += 32u)
        keys.set(e, uint(kClosed));
    }
  }
};

// The sum of lanes' values, added in the order of the lanes.
MB_GPU_FN float add_in_order(float sum, float value, uint count) {
  for (uint i = 0; i < count; ++i) sum = formats::add(sum, simd_broadcast(value, ushort(i)));
  return sum;
}

}  // namespace simt
}  // namespace moeblas

MB_KERNEL void route_simt(MB_DEVICE const uchar* logits MB_ARG(buffer(0)),
                          MB_DEVICE const float* bias MB_ARG(buffer(1)),
                          MB_DEVICE int* ids MB_ARG(buffer(2)),
                          MB_DEVICE float* weights MB_ARG(buffer(3)),
                          MB_DEVICE uint* workspace MB_ARG(buffer(4)),
                          MB_PARAMS(moeblas::simt::RouteParams, p, 5) MB_GRID) {
  using namespace moeblas::simt;
  MB_TG_ARRAY(uint, near_keys, [kRouteTokens][kNearExperts + kNearGroups]);
  // Keeps 0 / 0 away where every chosen sigmoid underflows; too small to change any other sum.
  const float tiny = 1e-20f;
  const bool by_logits = !p.sigmoid && !p.has_bias && p.groups == 1;
  const bool chosen_logits = !p.sigmoid && p.normalize;
  const long step = long(mb_groups.x) * kRouteTokens;
  for (long t = long(mb_group.x) * kRouteTokens + mb_simdgroup; t < p.tokens; t += step) {
    Token token;
    token.logits = logits;
    token.bias = bias;
    token.first = t * p.logits_stride[0];
    token.lane = mb_lane;
    Keys keys;
    keys.near_keys = &near_keys[mb_simdgroup][0];
    keys.far_keys = workspace + ulong(t) * (ulong(p.experts) + p.groups);
    keys.far = p.in_workspace != 0;

    Scores scores;
    if (!by_logits || !chosen_logits) scores = token.scores(p);
    for (uint e = mb_lane; e < p.experts; e += 32u) {
      const float logit = token.logit(p, e);
      float choice = logit;
      if (!by_logits) choice = scores.of(logit);
      if (p.has_bias) choice = moeblas::formats::add(choice, bias[long(e) * p.bias_stride]);
      keys.set(e, key_of(choice));
    }
    if (p.groups > 1) token.close_groups(p, keys);

    MB_DEVICE float* own = weights + t * p.weights_stride;
    Pick last = first_pick();
    float sum = 0.0f, max = moeblas::formats::bits_to_float(0xff800000u);
    for (uint j = 0; j < p.top_k; ++j) {
      last = keys.next(0u, p.experts, last, mb_lane);
      const float logit = token.logit(p, last.index);
      const float weight = chosen_logits ? logit : scores.of(logit);
      sum = moeblas::formats::add(sum, weight);
      max = larger(max, weight);
      if (j % 32u == mb_lane) {
        ids[t * p.ids_stride + long(j)] = int(last.index);
        own[j] = weight;  // for now: the same lane looks at it again below
      }
    }
    if (chosen_logits) {
      sum = 0.0f;
      for (uint j = 0; j < p.top_k; j += 32u) {
        const bool mine = j + mb_lane < p.top_k;
        const float weight = mine ? metal::precise::exp(own[j + mb_lane] - max) : 0.0f;
        if (mine) own[j + mb_lane] = weight;
        sum = add_in_order(sum, weight, metal::min(p.top_k - j, 32u));
      }
    }
    for (uint j = mb_lane; j < p.top_k; j += 32u) {
      float weight = own[j];
      if (chosen_logits) {
        weight = weight / sum;
      } else if (p.normalize) {
        weight = weight / (sum + tiny);
      }
      own[j] = moeblas::formats::mul(weight, p.scaling_factor);
    }
  }
}
MB_ENTRY(route_simt);
