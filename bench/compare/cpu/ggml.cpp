// ggml's CPU backend: float32 in and out, activations quantized to int8 in the call; weights as its
// files hold them ("plain") and in the order that it rearranges them to where it has one
// ("repacked").
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cstring>

#include "library.h"
#include "moeblas/kernels.h"

namespace compare {
namespace {

ggml_backend_t backend() {
  static ggml_backend_t cpu = ggml_backend_cpu_init();
  return cpu;
}

ggml_backend_buffer_type_t repacked_buffers() {
  ggml_backend_dev_t device = ggml_backend_get_device(backend());
  const auto get =
      reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
  for (auto* type = get ? get(device) : nullptr; type && *type; ++type) {
    if (std::string(ggml_backend_buft_name(*type)) == "CPU_REPACK") return *type;
  }
  return nullptr;
}

ggml_context* context(size_t tensors) {
  return ggml_init({.mem_size = tensors * ggml_tensor_overhead() + 64 * ggml_graph_overhead(),
                    .mem_buffer = nullptr,
                    .no_alloc = true});
}

struct State {
  Inputs in;
  ggml_context *weights, *rest;
  ggml_backend_buffer_t weight_memory, memory;
  std::vector<ggml_tensor*> w, out;  // per set
  std::vector<ggml_cgraph*> graphs;
  ~State() {
    ggml_backend_buffer_free(weight_memory);
    ggml_backend_buffer_free(memory);
    ggml_free(weights);
    ggml_free(rest);
  }
};

// Null: it has no such order for these weights.
std::optional<Product> product(const Inputs& inputs, ggml_type type,
                               const std::vector<uint8_t>& packed, bool repacked) {
  auto s = std::make_shared<State>();
  s->in = inputs;
  const Workload& w = s->in.work;
  const size_t row = ggml_row_size(type, w.k);
  s->weights = context(static_cast<size_t>(w.sets) + 1);
  s->rest = context(static_cast<size_t>(w.sets) * 3 + 8);
  const int64_t stacks = w.experts == 0 ? w.sets : 1, per_stack = w.experts == 0 ? 1 : w.experts;
  for (int64_t i = 0; i < stacks; ++i) {
    s->w.push_back(w.experts == 0 ? ggml_new_tensor_2d(s->weights, type, w.k, w.n)
                                  : ggml_new_tensor_3d(s->weights, type, w.k, w.n, w.experts));
  }
  ggml_backend_buffer_type_t buffers =
      repacked ? repacked_buffers() : ggml_backend_cpu_buffer_type();
  if (buffers == nullptr) return std::nullopt;
  s->weight_memory = ggml_backend_alloc_ctx_tensors_from_buft(s->weights, buffers);
  if (repacked && s->w[0]->extra == nullptr) {
    s->memory = nullptr;
    return std::nullopt;
  }
  moeblas::advise_huge_pages(ggml_backend_buffer_get_base(s->weight_memory),
                             ggml_backend_buffer_get_size(s->weight_memory));
  std::vector<uint8_t> plain(row * static_cast<size_t>(per_stack * w.n));
  for (int64_t i = 0; i < stacks; ++i) {
    for (int64_t r = 0; r < per_stack * w.n; ++r)
      std::memcpy(&plain[static_cast<size_t>(r) * row],
                  &packed[static_cast<size_t>(pool_row(i + r / w.n, r % w.n)) * row], row);
    ggml_backend_tensor_set(s->w[static_cast<size_t>(i)], plain.data(), 0, plain.size());
  }

  ggml_tensor* x = w.experts == 0 ? ggml_new_tensor_2d(s->rest, GGML_TYPE_F32, w.k, w.rows)
                                  : ggml_new_tensor_3d(s->rest, GGML_TYPE_F32, w.k, 1, w.rows);
  std::vector<ggml_tensor*> ids;
  for (int i = 0; i < w.sets; ++i) {
    if (w.experts == 0) {
      s->out.push_back(ggml_mul_mat(s->rest, s->w[static_cast<size_t>(i)], x));
    } else {
      ids.push_back(ggml_new_tensor_2d(s->rest, GGML_TYPE_I32, w.top_k, w.rows));
      s->out.push_back(ggml_mul_mat_id(s->rest, s->w[0], x, ids.back()));
    }
    s->graphs.push_back(ggml_new_graph_custom(s->rest, 8, false));
    ggml_build_forward_expand(s->graphs.back(), s->out.back());
  }
  s->memory = ggml_backend_alloc_ctx_tensors(s->rest, backend());
  ggml_backend_tensor_set(x, s->in.x.data(), 0, ggml_nbytes(x));
  for (size_t i = 0; i < ids.size(); ++i)
    ggml_backend_tensor_set(ids[i], s->in.ids[i].data(), 0, ggml_nbytes(ids[i]));

  Product p;
  p.library = "ggml";
  p.format = ggml_type_name(type);
  for (char& c : p.format) c = static_cast<char>(c >= 'a' && c <= 'z' && c != '_' ? c - 32 : c);
  p.kernel = repacked ? "repacked" : "plain";
  p.bits_per_weight = 8.0 * static_cast<double>(row) / static_cast<double>(w.k);
  p.limit = kInt8Limit;
  p.limit_is = "activations are int8 in blocks";
  p.weights.resize(s->in.pool.size());
  for (int64_t r = 0; r < kPool; ++r)
    ggml_get_type_traits(type)->to_float(&packed[static_cast<size_t>(r) * row],
                                         &p.weights[static_cast<size_t>(r * w.k)], w.k);
  p.call = [s](int set) {
    ggml_backend_graph_compute(backend(), s->graphs[static_cast<size_t>(set)]);
  };
  p.poison = [s] {
    for (ggml_tensor* out : s->out) std::memset(out->data, 0xff, ggml_nbytes(out));
  };
  p.result = [s](int set) {
    const ggml_tensor* out = s->out[static_cast<size_t>(set)];
    const auto* values = static_cast<const float*>(out->data);
    return std::vector<float>(values, values + ggml_nelements(out));
  };
  return p;
}

}  // namespace

Library ggml() {
  return {
      "ggml", COMPARE_GGML, [](int threads) { ggml_backend_cpu_set_n_threads(backend(), threads); },
      [](const Inputs& in, const std::vector<std::string>& formats) {
        std::vector<Product> products;
        const auto add = [&](const char* name, ggml_type type) {
          if (!wanted(formats, name)) return;
          std::vector<uint8_t> packed(ggml_row_size(type, in.work.k) * kPool);
          ggml_quantize_chunk(type, in.pool.data(), packed.data(), 0, kPool, in.work.k, nullptr);
          for (bool repacked : {false, true}) {
            if (auto p = product(in, type, packed, repacked)) products.push_back(std::move(*p));
          }
        };
        add("MXFP4", GGML_TYPE_MXFP4);
        add("Q4_0", GGML_TYPE_Q4_0);
        add("Q4_K", GGML_TYPE_Q4_K);
        add("Q8_0", GGML_TYPE_Q8_0);
        return products;
      }};
}

}  // namespace compare
