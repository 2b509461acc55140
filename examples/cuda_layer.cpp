// One expert layer on a GPU as an inference engine calls it, on the library's public interface:
// router and experts on a stream, in memory that the engine owns, captured once and replayed for
// every further token. The CPU makes the same layer; the answers are held against each other.
//
//   example_cuda_layer
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "moeblas/kernels.h"
#include "moeblas/ops.h"

namespace {

using moeblas::DType;
using moeblas::Shape;
using moeblas::TensorView;

constexpr int64_t kTokens = 4, kExperts = 16, kTopK = 4, kHidden = 1024, kIntermediate = 512;
constexpr int64_t kGroup = 64;
constexpr moeblas::Device kGpu{MOEBLAS_CUDA, 0};

void require(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// The same tensor on the host and on the GPU.
struct Tensor {
  DType dtype;
  Shape shape;
  std::vector<unsigned char> host;
  void* gpu = nullptr;

  Tensor(DType type, const Shape& sizes)
      : dtype(type), shape(sizes), host(static_cast<size_t>(sizes.numel()) * size_of(type)) {
    require(cudaMalloc(&gpu, host.size()));
  }
  explicit Tensor(const moeblas::Spec& spec) : Tensor(spec.dtype, spec.shape) {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { cudaFree(gpu); }

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(host.data());
  }
  TensorView on(moeblas::Device device) const {
    return {device == kGpu ? gpu : host.data(), dtype, shape, device};
  }
  void upload(cudaStream_t stream) const {
    require(cudaMemcpyAsync(gpu, host.data(), host.size(), cudaMemcpyHostToDevice, stream));
  }
};

// A stack of matrices as a checkpoint holds it; these are packed from random numbers.
struct Weights {
  static constexpr moeblas::QuantSpec kFormat{moeblas::Mode::affine, 4, kGroup};
  Tensor codes, scales, biases;

  Weights(int64_t n, int64_t k, std::mt19937& rng, cudaStream_t stream)
      : codes(DType::u32, {kExperts, n, k / 8}),
        scales(DType::bf16, {kExperts, n, k / kGroup}),
        biases(DType::bf16, {kExperts, n, k / kGroup}) {
    std::vector<float> values(static_cast<size_t>(kExperts * n * k));
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(k)));
    for (float& v : values) v = normal(rng);
    moeblas::quantize({values.data(), DType::f32, {kExperts, n, k}}, on({}));
    for (const Tensor* t : {&codes, &scales, &biases}) t->upload(stream);
  }
  moeblas::Quantized on(moeblas::Device device) const {
    return {.spec = kFormat,
            .codes = codes.on(device),
            .scales = scales.on(device),
            .biases = biases.on(device)};
  }
};

// What a step of decoding has: its inputs, and what router and experts make of them.
struct Step {
  Tensor x{DType::bf16, {kTokens, kHidden}};
  Tensor logits{DType::f32, {kTokens, kExperts}};
  Tensor ids{DType::i32, {kTokens, kTopK}};
  Tensor weights{DType::f32, {kTokens, kTopK}};
  Tensor out{DType::bf16, {kTokens, kHidden}};

  void fill(std::mt19937& rng, cudaStream_t stream) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kTokens * kHidden; ++i) {
      const float value = normal(rng);
      std::memcpy(x.as<uint16_t>() + i, reinterpret_cast<const char*>(&value) + 2, 2);  // bfloat16
    }
    for (int64_t i = 0; i < kTokens * kExperts; ++i) logits.as<float>()[i] = normal(rng);
    x.upload(stream);
    logits.upload(stream);
  }
};

class Layer {
 public:
  explicit Layer(cudaStream_t stream)
      : rng_(2026),
        gate_up_(2 * kIntermediate, kHidden, rng_, stream),
        down_(kHidden, kIntermediate, rng_, stream) {}

  void route(const Step& s, moeblas::Device device, const moeblas::Options& options) const {
    moeblas::moe_route(s.logits.on(device), {}, {.top_k = kTopK, .normalize = true},
                       s.ids.on(device), s.weights.on(device), options);
  }
  void experts(const Step& s, moeblas::Device device, const moeblas::Options& options) const {
    moeblas::FfnLayer layer;
    layer.gate_up = gate_up_.on(device);
    layer.down = down_.on(device);
    moeblas::moe_ffn(s.x.on(device), layer, s.ids.on(device), s.weights.on(device),
                     s.out.on(device), options);
  }

 private:
  std::mt19937 rng_;
  Weights gate_up_, down_;
};

float bfloat16_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

// The largest difference from the CPU's answer, as a share of the largest number there.
float difference(const Layer& layer, Step& s, cudaStream_t stream) {
  std::vector<uint16_t> answer(static_cast<size_t>(kTokens * kHidden));
  require(
      cudaMemcpyAsync(answer.data(), s.out.gpu, s.out.host.size(), cudaMemcpyDeviceToHost, stream));
  require(cudaStreamSynchronize(stream));
  layer.route(s, {}, {});
  layer.experts(s, {}, {});
  float worst = 0, largest = 0;
  for (size_t i = 0; i < answer.size(); ++i) {
    const float expected = bfloat16_to_float(s.out.as<uint16_t>()[i]);
    const float error = std::abs(bfloat16_to_float(answer[i]) - expected);
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
    largest = std::max(largest, std::abs(expected));
  }
  return worst / largest;
}

bool run() {
  cudaStream_t stream;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::mt19937 rng(1);
  Layer layer(stream);
  Step step;

  // The workspace: asked for once, since sizes alone decide. Calls on one stream may share it.
  moeblas::Options options;
  options.stream = stream;
  const auto route = [&](const moeblas::Options& o) { layer.route(step, kGpu, o); };
  const auto experts = [&](const moeblas::Options& o) { layer.experts(step, kGpu, o); };
  const moeblas::Plan plan = moeblas::plan(experts, options);
  options.workspace_bytes =
      std::max(moeblas::plan(route, options).workspace_bytes, plan.workspace_bytes);
  require(cudaMalloc(&options.workspace, std::max<size_t>(options.workspace_bytes, 1)));

  // Captured once: which kernels run depends on shapes, never on what tensors hold.
  cudaGraph_t graph;
  cudaGraphExec_t step_of_layer;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  route(options);
  experts(options);
  require(cudaStreamEndCapture(stream, &graph));
  require(cudaGraphInstantiate(&step_of_layer, graph, 0));

  std::printf("an expert layer of %lld tokens by %s, %zu bytes of workspace\n",
              static_cast<long long>(kTokens), plan.kernel.c_str(), options.workspace_bytes);
  bool right = true;
  for (int i = 0; i < 3; ++i) {
    step.fill(rng, stream);
    require(cudaGraphLaunch(step_of_layer, stream));
    const float share = difference(layer, step, stream);
    right = right && share < 0.02f;  // activations and results are rounded to bfloat16
    std::printf("step %d: the GPU's answer differs from the CPU's by %.4f of the largest number\n",
                i, static_cast<double>(share));
  }
  require(cudaGraphExecDestroy(step_of_layer));
  require(cudaGraphDestroy(graph));
  require(cudaFree(options.workspace));
  require(cudaStreamDestroy(stream));
  return right;
}

}  // namespace

int main() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::puts("no GPU here");
    return 0;
  }
  try {
    const bool right = run();
    std::puts(right ? "right" : "WRONG");
    return right ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
