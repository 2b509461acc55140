#include "dispatch/select.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "formats/formats.h"
#include "moeblas/error.h"

namespace moeblas::dispatch {
namespace {

// Why a row does not take a problem that needs what it does not offer; in the order of Extra.
constexpr const char* kExtraNames[] = {
    "does not take a packed x",          "does not quantize x on the fly",
    "does not quantize w on the fly",    "does not take swizzled scales",
    "has no epilogue (alpha, c, bias)",  "writes x's dtype only",
    "takes a dense w of x's dtype only",
};
constexpr const char* kGroupingNames[] = {"none", "gather", "offsets", "segments"};

void join(std::string& list, const std::string& item) {
  if (!list.empty()) list += ", ";
  list += item;
}

// The word by which messages and tables name a format.
std::string format_name(Mode mode, int bits) {
  std::string text = name(mode);
  if (mode == Mode::affine) text += std::to_string(bits);
  return text;
}

const Backend& backend_for(std::span<const Backend* const> backends, const char* op,
                           const Device& device, int& capability) {
  std::string present;
  for (const Backend* backend : backends) {
    if (backend->device_type == device.type) {
      Reason why_not;
      capability = backend->capability(device.id, why_not);
      if (!why_not) return *backend;
      throw Error(MOEBLAS_UNSUPPORTED, std::string("[") + op + "] " + device_name(device) +
                                           " cannot be used: " + why_not.text());
    }
    join(present, backend->name);
  }
  throw Error(MOEBLAS_UNSUPPORTED, std::string("[") + op + "] the tensors are on " +
                                       device_name(device) + "; this build has: " + present);
}

// "a, b, c": what there is to choose from.
template <class Problem>
std::string names_of(std::span<const Row<Problem>> rows) {
  std::string text;
  for (const auto& row : rows) join(text, row.name.text);
  return text;
}

template <class Problem>
bool has_row(std::span<const Row<Problem>> rows, const char* kernel) {
  for (const auto& row : rows) {
    if (std::strcmp(row.name.text, kernel) == 0) return true;
  }
  return false;
}

// The row that the caller or the environment forces; a name that is no row is an error, whether or
// not there is anything to compute. The environment's name counts for the table that holds it and
// leaves other problems alone.
template <class Problem>
const char* forced_kernel(std::span<const Backend* const> backends, const Backend& backend,
                          const Problem& problem) {
  if (const char* kernel = problem.options.kernel; kernel != nullptr) {
    if (has_row(table<Problem>(backend), kernel)) return kernel;
    throw Error(MOEBLAS_INVALID_ARGUMENT,
                std::string("[") + problem.op + "] kernel is '" + kernel + "', expected one of " +
                    backend.name +
                    "'s table for this operation: " + names_of(table<Problem>(backend)));
  }
  const char* kernel = std::getenv("MOEBLAS_KERNEL");
  if (kernel == nullptr || *kernel == '\0') return nullptr;
  if (has_row(table<Problem>(backend), kernel)) return kernel;
  bool elsewhere = false;
  for (const Backend* other : backends) {
    for_each_table(*other,
                   [&](const char*, auto rows) { elsewhere = elsewhere || has_row(rows, kernel); });
  }
  if (elsewhere) return nullptr;
  throw Error(MOEBLAS_INVALID_ARGUMENT, std::string("[") + problem.op +
                                            "] MOEBLAS_KERNEL=" + kernel +
                                            " names no kernel; `moeblas kernels` lists them");
}

template <class Problem>
Formats required_formats(const Problem& problem) {
  return Formats::of(problem.format());
}
Formats required_formats(const FfnProblem& p) {
  const Formats first = Formats::of(p.gate_up.spec) | Formats::of(p.down.spec);
  return p.separate ? first | Formats::of(p.up.spec) : first;
}

bool is_aligned(const void* workspace) { return reinterpret_cast<uintptr_t>(workspace) % 64 == 0; }

void answer(moeblas_query& query, const char* kernel, size_t bytes, const std::string& text) {
  query.kernel = kernel;
  query.workspace_bytes = bytes;
  if (query.text != nullptr && query.text_bytes > 0) {
    const size_t length = std::min(text.size(), query.text_bytes - 1);
    std::memcpy(query.text, text.data(), length);
    query.text[length] = '\0';
  }
}

}  // namespace

std::string device_name(const Device& device) {
  const char* type = device.type == MOEBLAS_CPU     ? "cpu"
                     : device.type == MOEBLAS_CUDA  ? "cuda"
                     : device.type == MOEBLAS_METAL ? "metal"
                                                    : "device type ";
  std::string text = type;
  if (text.back() == ' ') text += std::to_string(device.type);
  return device.type == MOEBLAS_CPU ? text : text + ":" + std::to_string(device.id);
}

std::string describe(Formats formats) {
  if (formats.has(Formats::quantized() | Formats::dense())) return "all";
  std::string text;
  if (formats.has(Formats::dense())) join(text, "dense");
  if (formats.has(Formats::quantized())) {
    join(text, "all quantized");
    return text;
  }
  for (int mode = 0; mode < kModes; ++mode) {
    for (int bits = 1; bits <= 8; ++bits) {
      const Mode m = static_cast<Mode>(mode);
      if (formats::any_format(formats::AllFormats{}, m, bits) &&
          formats.has(Formats::of(m, bits))) {
        join(text, format_name(m, bits));
      }
    }
  }
  return text;
}

std::string describe(DTypes dtypes) {
  std::string text;
  for (DType d : {DType::f32, DType::f16, DType::bf16}) {
    if (dtypes.has(d)) join(text, name(d));
  }
  return text;
}

std::string describe(Groupings groupings) {
  std::string text;
  for (int g = 0; g < 4; ++g) {
    if (groupings.has(static_cast<Grouping>(g))) join(text, kGroupingNames[g]);
  }
  return text;
}

std::string describe(RowRange rows) {
  const bool open = rows.most == std::numeric_limits<int64_t>::max();
  if (open && rows.least <= 1) return "any";
  return std::to_string(rows.least) + ".." + (open ? "" : std::to_string(rows.most));
}

// What why_not finds in the columns, without its words: most calls take microseconds.
template <class Problem>
bool columns_take(const Row<Problem>& row, const Problem& problem, int capability) {
  const int64_t rows = problem.total_rows();
  return capability >= row.arch.least && capability <= row.arch.most &&
         row.formats.has(required_formats(problem)) && row.dtypes.has(problem.dtype()) &&
         row.grouping.has(problem.grouping) && (problem.extras() & ~row.extras.mask) == 0 &&
         rows >= row.rows.least && rows <= row.rows.most;
}

template <class Problem>
Reason why_not(const Row<Problem>& row, const Problem& problem, int capability) {
  if (capability < row.arch.least || capability > row.arch.most)
    return Reason::of("needs %s", row.arch.text);
  const Formats foreign{required_formats(problem).mask & ~row.formats.mask};
  if (foreign.mask != 0) {
    return Reason::of("%s weights are not among: %s", describe(foreign).c_str(),
                      describe(row.formats).c_str());
  }
  if (!row.dtypes.has(problem.dtype())) {
    return Reason::of("%s activations are not among: %s", name(problem.dtype()),
                      describe(row.dtypes).c_str());
  }
  if (!row.grouping.has(problem.grouping)) {
    return Reason::of("grouping %s is not among: %s",
                      kGroupingNames[static_cast<int>(problem.grouping)],
                      describe(row.grouping).c_str());
  }
  if (const uint32_t missing = problem.extras() & ~row.extras.mask) {
    return Reason::of("%s", kExtraNames[std::countr_zero(missing)]);
  }
  const int64_t rows = problem.total_rows();
  if (rows < row.rows.least || rows > row.rows.most) {
    return Reason::of("%lld rows are outside %s", static_cast<long long>(rows),
                      describe(row.rows).c_str());
  }
  return row.reject != nullptr ? row.reject(problem) : Reason();
}

template <class Problem>
const Row<Problem>& select(std::span<const Row<Problem>> table, const Problem& problem,
                           int capability, const char* forced, std::string* explanation) {
  std::string lines;
  const auto look = [&](bool explain) -> const Row<Problem>* {
    for (const auto& row : table) {
      if (forced != nullptr && std::strcmp(forced, row.name.text) != 0) continue;
      if (!explain && !columns_take(row, problem, capability)) continue;
      const Reason reason = why_not(row, problem, capability);
      if (explain)
        lines += std::string(row.name.text) + ": " + (reason ? reason.text() : "takes it") + "\n";
      if (!reason) return &row;
    }
    return nullptr;
  };
  const Row<Problem>* row = look(explanation != nullptr);
  if (explanation != nullptr && row != nullptr) *explanation = lines;
  if (row != nullptr) return *row;
  if (explanation == nullptr) look(true);
  throw Error(MOEBLAS_UNSUPPORTED,
              std::string("[") + problem.op + "] " +
                  (forced != nullptr ? "the forced kernel does not take this problem:\n"
                                     : "no kernel takes this problem:\n") +
                  lines);
}

template <class Problem>
const Row<Problem>& select_part(const Backend& backend, const Problem& part, int capability) {
  const auto rows = table<Problem>(backend);
  const char* kernel = std::getenv("MOEBLAS_KERNEL");
  return select(rows, part, capability,
                kernel != nullptr && has_row(rows, kernel) ? kernel : nullptr);
}

template <class Problem>
void* allocate(const Backend& backend, const Problem& problem, size_t bytes) {
  try {
    return backend.allocate(problem.device.id, bytes, problem.options.stream);
  } catch (const std::bad_alloc&) {
    throw Error(MOEBLAS_OUT_OF_MEMORY, std::string("[") + problem.op +
                                           "] out of memory for a workspace of " +
                                           std::to_string(bytes) + " bytes");
  }
}

template <class Problem>
void run(std::span<const Backend* const> backends, const Problem& problem) {
  moeblas_query* query = problem.options.query;
  int capability = 0;
  const Backend& backend = backend_for(backends, problem.op, problem.device, capability);
  const char* forced = forced_kernel(backends, backend, problem);
  if (problem.empty()) {
    if (query != nullptr) answer(*query, nullptr, 0, "nothing to compute: the output is empty\n");
    return;
  }
  // Reasons take longer to word than a kernel to be chosen: only for whoever reads them.
  const bool worded = query != nullptr && query->text != nullptr && query->text_bytes > 0;
  std::string explanation;
  const Row<Problem>& row =
      select(table<Problem>(backend), problem, capability, forced, worded ? &explanation : nullptr);
  const size_t bytes = row.workspace != nullptr ? row.workspace(problem) : 0;
  if (query != nullptr) {
    answer(*query, row.name.text, bytes, explanation);
    return;
  }
  if (bytes == 0) return row.launch(problem, {});
  const Options& options = problem.options;
  if (options.workspace != nullptr) {
    if (options.workspace_bytes < bytes || !is_aligned(options.workspace)) {
      throw Error(MOEBLAS_INVALID_ARGUMENT,
                  std::string("[") + problem.op + "] options.workspace has " +
                      std::to_string(options.workspace_bytes) + " bytes, expected " +
                      std::to_string(bytes) + " aligned to 64 for " + row.name.text);
    }
    row.launch(problem, {options.workspace, options.workspace_bytes});
    return;
  }
  if (options.allocate != nullptr) {
    void* const given = options.allocate(options.allocate_context, bytes);
    if (given == nullptr) {
      throw Error(MOEBLAS_OUT_OF_MEMORY, std::string("[") + problem.op +
                                             "] options.allocate gave nothing for a workspace of " +
                                             std::to_string(bytes) + " bytes");
    }
    if (!is_aligned(given)) {
      throw Error(MOEBLAS_INVALID_ARGUMENT,
                  std::string("[") + problem.op +
                      "] options.allocate gave memory that is not aligned to 64");
    }
    row.launch(problem, {given, bytes});
    return;
  }
  const auto release = [&](void* buffer) {
    backend.release(problem.device.id, buffer, problem.options.stream);
  };
  const std::unique_ptr<void, decltype(release)> workspace(allocate(backend, problem, bytes),
                                                           release);
  row.launch(problem, {workspace.get(), bytes});
}

template Reason why_not(const Row<MatmulProblem>&, const MatmulProblem&, int);
template const Row<MatmulProblem>& select(std::span<const Row<MatmulProblem>>, const MatmulProblem&,
                                          int, const char*, std::string*);
template const Row<MatmulProblem>& select_part(const Backend&, const MatmulProblem&, int);
template void run(std::span<const Backend* const>, const MatmulProblem&);

template Reason why_not(const Row<QuantizeProblem>&, const QuantizeProblem&, int);
template const Row<QuantizeProblem>& select(std::span<const Row<QuantizeProblem>>,
                                            const QuantizeProblem&, int, const char*, std::string*);
template void run(std::span<const Backend* const>, const QuantizeProblem&);

template Reason why_not(const Row<RouteProblem>&, const RouteProblem&, int);
template const Row<RouteProblem>& select(std::span<const Row<RouteProblem>>, const RouteProblem&,
                                         int, const char*, std::string*);
template void run(std::span<const Backend* const>, const RouteProblem&);

template Reason why_not(const Row<PermuteProblem>&, const PermuteProblem&, int);
template const Row<PermuteProblem>& select(std::span<const Row<PermuteProblem>>,
                                           const PermuteProblem&, int, const char*, std::string*);
template void run(std::span<const Backend* const>, const PermuteProblem&);

template Reason why_not(const Row<FfnProblem>&, const FfnProblem&, int);
template const Row<FfnProblem>& select(std::span<const Row<FfnProblem>>, const FfnProblem&, int,
                                       const char*, std::string*);
template void run(std::span<const Backend* const>, const FfnProblem&);

}  // namespace moeblas::dispatch
