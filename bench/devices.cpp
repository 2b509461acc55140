#include "bench/devices.h"

#include <charconv>
#include <stdexcept>

#include "bench/cpu_device.h"
#include "bench/cuda_device.h"
#include "moeblas/moeblas.h"

namespace moeblas::bench {
namespace {

bool usable(moeblas_device device) {
  void* probe = nullptr;
  if (moeblas_buffer_alloc(device, 1, &probe) != MOEBLAS_OK) return false;
  moeblas_buffer_free(device, probe);
  return true;
}

// The number after "cuda:".
int parse_id(const std::string& name, size_t from) {
  int id = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + from, end, id);
  if (error != std::errc{} || stop != end || id < 0) {
    throw std::invalid_argument("'" + name + "' is no device: cuda:0, cuda:1, ...");
  }
  return id;
}

}  // namespace

std::vector<MakeDevice> devices(const std::string& name, const std::vector<int>& threads) {
  if (name == "auto") return devices(usable({MOEBLAS_CUDA, 0}) ? "cuda" : "cpu", threads);
  std::vector<MakeDevice> made;
  if (name == "cpu") {
    for (int n : threads) made.push_back([n] { return make_cpu_device(n); });
  } else if (name == "cuda" || name.starts_with("cuda:")) {
    const int id = name == "cuda" ? 0 : parse_id(name, 5);
#if defined(MOEBLAS_HAS_CUDA)
    made.push_back([id] { return make_cuda_device(id); });
#else
    throw std::invalid_argument("device " + std::to_string(id) +
                                " of CUDA: this build is without CUDA");
#endif
  } else {
    throw std::invalid_argument("'" + name + "' is no device: auto, cpu, cuda, cuda:<number>");
  }
  return made;
}

}  // namespace moeblas::bench
