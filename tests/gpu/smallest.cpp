#include "smallest.h"

#include "cuda_lane.h"
#include "generated_jobs.h"
#include "moe_jobs.h"
#include "rows_ahead.h"
#include "support/generator.h"

namespace moeblas::gpu {
namespace {

using test::Op;

Outcome run_exact(const Job& job, const char* kernel, bool judged) {
  Outcome outcome;
  Options options;
  options.kernel = kernel;
  try {
    Plan plan;
    try {
      plan = plan_on(job, kCuda, options);
    } catch (const Error& e) {
      if (e.status() != MOEBLAS_UNSUPPORTED) throw;
      outcome.unsupported = e.what();
      return outcome;
    }
    outcome.kernel = plan.kernel;
    std::vector<std::unique_ptr<DeviceMemory>> memory;
    std::vector<TensorView> views;
    std::vector<uint8_t> bytes;
    for (const Tensor& t : job.tensors) {
      memory.push_back(std::make_unique<DeviceMemory>(t.bytes));
      uint8_t* base = memory.back()->data();
      if (t.role == Role::output) {
        check_cuda(cudaMemset(base, 0xff, t.bytes), "cudaMemset");
      } else {
        check_cuda(cudaMemcpy(base, t.base, t.bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
      }
      views.push_back(t.view);
      if (t.view.present) views.back().data = base + (static_cast<uint8_t*>(t.view.data) - t.base);
      views.back().device = kCuda;
    }
    const DeviceMemory workspace(plan.workspace_bytes);
    options.workspace = workspace.data();
    options.workspace_bytes = plan.workspace_bytes;
    job.call(views, options);
    check_cuda(cudaDeviceSynchronize(), "the call");
    if (!judged) return outcome;
    // Laid out as a block, which knows which bytes are elements.
    Block block(job, 0, 0xff);
    bytes.assign(block.bytes(), block.bytes() + block.size());
    for (size_t i = 0; i < job.tensors.size(); ++i) {
      const Tensor& t = job.tensors[i];
      check_cuda(cudaMemcpy(bytes.data() + block.at(i), memory[i]->data(), t.bytes,
                            cudaMemcpyDeviceToHost),
                 "cudaMemcpy");
    }
    const std::vector<uint8_t> got = block.results(bytes), cpu = run_on_cpu(job);
    outcome.same_as_cpu = got == cpu;
    if (job.judge) outcome.judgement = job.judge(plan.kernel, got, cpu);
    outcome.failure = job.judge ? outcome.judgement.failure : difference(job, got, cpu);
  } catch (const std::exception& e) {
    outcome.failure = std::string("unexpected error: ") + e.what();
  }
  return outcome;
}

}  // namespace

void run_smallest(Report& report, const std::string& only, Part part, bool judged) {
  unsigned jobs = 0;
  const auto is_ours = [&] { return jobs++ % part.count == part.first; };
  const auto rows_of = [&](const std::string& problem) {
    std::vector<std::string> names;
    for (const moeblas_kernel& row : kernels()) {
      if (!only.empty() && only != row.name) continue;
      if (std::string(row.backend) == "cuda" && row.problem == problem) names.push_back(row.name);
    }
    return names;
  };
  const std::vector<std::string> rows = rows_of("matmul"), conversions = rows_of("quantize");
  std::vector<std::string> tuned;  // with kernels for some shapes only
  for (const std::string& row : rows) {
    if (!row.ends_with("_simt")) tuned.push_back(row);
  }
  // qmv_sm80 takes whatever the others do, at every size, and would take most of the time.
  std::vector<std::string> others = tuned;
  std::erase(others, "qmv_sm80");
  const std::vector<std::string> layer_rows = rows_of("ffn");
  std::vector<std::string> one_row = rows;
  std::erase_if(one_row, [](const std::string& row) { return row != "qmv_one_sm90"; });
  std::vector<std::string> few_rows = rows;
  std::erase_if(few_rows, [](const std::string& row) { return row != "qmv_sm90"; });
  std::vector<std::string> one_matrix = rows;
  std::erase_if(one_matrix, [](const std::string& row) { return row != "qmm_sm90"; });
  std::vector<std::string> by_slices = rows;
  std::erase_if(by_slices, [](const std::string& row) { return row != "qmm_few_sm90"; });
  const auto run_each = [&](const Job& job, const std::vector<std::string>& names) {
    for (const std::string& row : names) {
      report.add(job, row.c_str(), run_exact(job, row.c_str(), judged));
    }
  };
  // `make`, a job with its data, is called where some row of `names` runs it here.
  const auto run_all = [&](const auto& make, const std::vector<std::string>& names) {
    if (!names.empty() && is_ours()) run_each(make(), names);
  };
  // Forced through every row, since the first that takes a product hides the others.
  // As aligned as tensors are in practice; each has memory of its exact size here.
  const auto run_rows = [&](const test::Case& c) {
    run_all([&] { return job_of(c, test::Side::left); }, rows);
  };
  const auto run_tuned = [&](const test::Case& c) {
    run_all([&] { return job_of(c, test::Side::left); }, tuned);
  };
  // Rows of x that are written beside products: the first, so that a part of many is this alone.
  std::vector<std::string> ahead = rows;
  std::erase_if(ahead,
                [](const std::string& row) { return row != "qmm_sm90" && row != "mm_sm90"; });
  for (const auto& make : smallest_ahead_jobs()) run_all(make, ahead);
  std::vector<std::string> long_layers = layer_rows;
  std::erase_if(long_layers, [](const std::string& row) { return row != "ffn_qmm_sm90"; });
  for (const auto& make : smallest_ahead_layers()) run_all(make, long_layers);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<std::optional<QuantSpec>> formats{std::nullopt};
    for (int bits : {2, 3, 4, 5, 6, 8}) formats.push_back(QuantSpec{Mode::affine, bits, 32});
    for (Mode mode : {Mode::mxfp4, Mode::mxfp8, Mode::nvfp4}) formats.push_back(QuantSpec{mode});
    for (const auto& format : formats) {
      const int64_t unit = format ? test::packed_unit(format->resolved()) : 8;
      for (bool transpose : {true, false}) {
        if (transpose && !format) continue;
        // Two tiles of at most 64 and a tail in each direction that has tiles.
        const int64_t packed = (130 / unit + 1) * unit, open = 133;
        const int64_t n = transpose ? open : packed, k = transpose ? packed : open;
        for (int64_t m : {int64_t{1}, int64_t{70}}) {
          if (format) {
            run_rows(product_case(Op::quantized_matmul, format, dtype, transpose, m, n, k,
                                  test::Ids::uniform));
          }
          run_rows(product_case(format ? Op::gather_qmm : Op::gather_mm, format, dtype, transpose,
                                m, n, k, test::Ids::mixed));
          run_rows(product_case(format ? Op::grouped_qmm : Op::grouped_mm, format, dtype, transpose,
                                m, n, k, test::Ids::uniform));
        }
        if (!format) {
          // One row, too, whose end is that of its memory.
          for (int64_t m : {int64_t{1}, int64_t{70}}) {
            run_rows(
                product_case(Op::segmented_mm, format, dtype, false, m, n, k, test::Ids::uniform));
          }
        }
      }
    }
  }
  // More pairs than one threadgroup groups by itself, and more matrices than one digit counts.
  for (uint64_t seed = 0; seed < 2; ++seed) run_rows(many_pairs_case(seed));
  // Each width and group with each type of scales, a few times.
  for (uint64_t seed = 0; seed < 96; ++seed) {
    run_all([&] { return job_of(test::one_row_case(seed), test::Side::left); }, one_row);
  }
  // So many rows of w that each thread block has two tall tiles; tall tiles of rows so long that
  // their places are filled again.
  for (Mode mode : {Mode::mxfp4, Mode::nvfp4}) {
    for (const auto& [n, k] : {std::pair{kBlocks * 96 + 1, 512}, std::pair{int64_t{4288}, 6144}}) {
      const test::Case c = product_case(Op::quantized_matmul, QuantSpec{mode}, DType::bf16, true, 1,
                                        n, k, test::Ids::uniform);
      run_all([&] { return job_of(c, test::Side::left); }, one_row);
    }
  }
  // What is aligned as kernels with bulk copies want it.
  for (uint64_t seed = 0; seed < 250; ++seed) {
    run_all([&] { return job_of(test::decode_case(seed), test::Side::left); },
            seed < 90 ? tuned : others);
  }
  // Each kernel that is for thread blocks with several tiles of few rows: scales come with stages
  // where their rows are whole 16 bytes, and else by tiles.
  for (const QuantSpec& format : {QuantSpec{Mode::affine, 4, 32}, QuantSpec{Mode::affine, 4, 64},
                                  QuantSpec{Mode::mxfp4}, QuantSpec{Mode::nvfp4}}) {
    for (DType dtype : {DType::f16, DType::bf16}) {
      for (int64_t k : {512, 320}) {
        test::Case c = product_case(Op::gather_qmm, format, dtype, true, 1, 400, k,
                                    test::Ids::mixed, kBlocks + 3);
        as_expert_layer(c, 203, 2);
        run_all([&] { return job_of(c, test::Side::left); }, few_rows);
      }
    }
  }
  // Whole strips of K and N, one row each, as gather_qmv_fast wants them; ids looked at beforehand.
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Job job = job_of(product_case(Op::gather_qmv, QuantSpec{Mode::affine, 4, 64}, dtype, true, 3,
                                  16, 1024, test::Ids::uniform),
                     test::Side::left);
    run_all([&] { return job; }, rows);
    job.call = [call = job.call](Views views, const Options& options) {
      Options checked = options;
      checked.check_ids = true;
      call(views, checked);
    };
    run_all([&] { return job; }, rows);
  }
  // The rows that every width of tiles is for.
  const auto run_widths = [&](const QuantSpec& format, DType dtype, DType scale, int64_t k = 320) {
    const auto with_scales = [&](test::Case c) {
      if (c.biases.present) c.scales.dtype = c.biases.dtype = scale;
      return c;
    };
    for (int64_t m : {30, 40, 64, 100, 130, 200, 300}) {
      const test::Case c = with_scales(
          product_case(Op::grouped_qmm, format, dtype, true, m, 264, k, test::Ids::mixed, 1));
      run_all([&] { return job_of(c, test::Side::left); }, others);
    }
    test::Case layer =
        product_case(Op::gather_qmm, format, dtype, true, 1, 264, k, test::Ids::mixed, 3);
    for (int64_t tokens : {30, 70}) {
      as_expert_layer(layer, tokens, 3);
      run_tuned(with_scales(layer));
    }
    // Experts that meet some rows more than the average, and as many: both of two kernels.
    test::Case all =
        product_case(Op::gather_qmm, format, dtype, true, 1, 264, k, test::Ids::uniform, 3);
    for (int64_t tokens : {56, 64, 128, 256}) {
      as_expert_layer(all, tokens, 3);
      run_all([&] { return job_of(with_scales(all), test::Side::left); }, others);
    }
    // One matrix, with K enough to be shared out.
    for (int64_t m : {30, 64, 100, 170}) {
      run_tuned(with_scales(product_case(Op::quantized_matmul, format, dtype, true, m, 136, k + 896,
                                         test::Ids::uniform)));
    }
  };
  for (DType dtype : {DType::bf16, DType::f16}) {
    for (int bits : {4, 8}) run_widths({Mode::affine, bits, 64}, dtype, dtype);
    for (Mode mode : {Mode::mxfp4, Mode::mxfp8, Mode::nvfp4}) run_widths({mode}, dtype, dtype);
  }
  for (int bits : {4, 8}) run_widths({Mode::affine, bits, 16}, DType::bf16, DType::f32);
  // Few rows of one matrix, in one launch: each format with each number of rows of w a block.
  for (uint64_t seed = 0; seed < 25; ++seed) {
    run_all([&] { return job_of(few_of_one_case(seed), test::Side::left); }, one_matrix);
  }
  // Of those with many tiles, one for each way to share out K.
  for (uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 46, 52, 55}) {
    run_all([&] { return job_of(few_by_slices_case(seed), test::Side::left); }, by_slices);
  }
  // The same with rows of x in registers, K in one share, in two, and in two passes of two.
  for (const QuantSpec& format : {QuantSpec{Mode::affine, 4, 64}, QuantSpec{Mode::mxfp4}}) {
    for (int64_t k : {2560, 7168, 13824}) {
      run_all(
          [&] {
            return job_of(product_case(Op::quantized_matmul, format, DType::bf16, true, 11, 201, k,
                                       test::Ids::uniform),
                          test::Side::left);
          },
          one_matrix);
    }
  }
  // Of an expert layer: experts of 12 rows on the average, so that some have one pass and others
  // two, and of 8, so that some have one octet of tokens; tiles of one group of rows of w and of
  // two.
  for (const bool affine : {true, false}) {
    const QuantSpec format = affine ? QuantSpec{Mode::affine, 4, 64} : QuantSpec{Mode::mxfp4};
    for (int64_t k : {2560, 1536}) {
      test::Case layer =
          product_case(Op::gather_qmm, format, DType::bf16, true, 1, 201, k, test::Ids::uniform, 3);
      as_expert_layer(layer, affine ? 18 : 12, 2);
      run_all([&] { return job_of(layer, test::Side::left); }, one_matrix);
    }
  }
  // As many pairs as one launch lists, by ids of 64 bits, and more.
  for (int64_t tokens : {2048, 2064}) {
    test::Case layer = product_case(Op::gather_qmm, QuantSpec{Mode::affine, 4, 64}, DType::bf16,
                                    true, 1, 16, 64, test::Ids::mixed, 300);
    as_expert_layer(layer, tokens, 8);
    layer.rhs.dtype = DType::i64;
    run_all([&] { return job_of(layer, test::Side::left); }, one_matrix);
  }
  // Rows of codes of whole 16 bytes.
  for (int bits : {2, 3, 5, 6}) {
    run_widths({Mode::affine, bits, 64}, DType::bf16, DType::bf16, bits % 2 == 0 ? 320 : 384);
  }
  // One row that meets whole chunks of K, and one that is none.
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group : {16, 64}) {
      run_tuned(product_case(Op::quantized_matmul, QuantSpec{Mode::affine, bits, group},
                             DType::bf16, true, 1, 136, 2368, test::Ids::uniform));
    }
  }
  // Many rows in steps of 32 of K, which no other job of this format and dtype has.
  run_tuned(product_case(Op::quantized_matmul, QuantSpec{Mode::nvfp4}, DType::f32, true, 70, 133,
                         160, test::Ids::uniform));
  // More of x than shared memory holds beside the weights, in groups that no generated case has
  // there.
  run_tuned(product_case(Op::quantized_matmul, QuantSpec{Mode::affine, 8, 32}, DType::bf16, true,
                         16, 136, 3200, test::Ids::uniform));
  for (DType dtype : {DType::bf16, DType::f16}) {
    for (bool rows_of_k : {false, true}) {
      const auto run_dense = [&](test::Case c) {
        if (rows_of_k && !c.transpose) along_k(c.w);
        run_tuned(c);
      };
      for (int64_t m : {30, 40, 64, 100, 130, 200, 300}) {
        run_dense(product_case(Op::grouped_mm, std::nullopt, dtype, false, m, 264, 320,
                               test::Ids::mixed, 1));
      }
      run_dense(product_case(Op::grouped_qmm, std::nullopt, dtype, rows_of_k, 130, 264, 320,
                             test::Ids::mixed, 1));
      test::Case layer =
          product_case(Op::gather_mm, std::nullopt, dtype, false, 1, 264, 320, test::Ids::mixed, 3);
      as_expert_layer(layer, 70, 3);
      run_dense(layer);
    }
  }
  for (uint64_t seed = 0; seed < 400; ++seed)
    run_all([&] { return qqmm_job(seed); }, seed < 160 ? rows : tuned);
  for (uint64_t seed = 0; seed < 288; ++seed) {
    run_all([&] { return generated_job(Op::quantize, seed); }, conversions);
    run_all([&] { return generated_job(Op::dequantize, seed); }, conversions);
    if (seed < 72) run_all([&] { return generated_job(Op::to_fp8, seed); }, conversions);
    if (seed < 72) run_all([&] { return generated_job(Op::from_fp8, seed); }, conversions);
    if (seed < 144) run_all([&] { return dual_job(seed); }, conversions);
    if (seed < 72) run_all([&] { return swizzled_job(seed); }, conversions);
  }
  // Kernels of their own where others take two blocks a lane: groups of 16, and rows apart.
  for (DType dtype : {DType::f16, DType::bf16}) {
    const auto run_quantize = [&](const test::Case& c) {
      run_all([&] { return job_of(c, test::Side::left); }, conversions);
    };
    for (int bits : {2, 3, 4, 5, 6, 8}) {
      run_quantize(quantize_case({Mode::affine, bits, 16}, dtype, 3, 160));
    }
    for (int bits : {5, 6}) {
      test::Case c = quantize_case({Mode::affine, bits, 32}, dtype, 3, 160);
      c.x.strides = Shape{168, 1};
      run_quantize(c);
    }
  }
  for (uint64_t seed = 0; seed < 140; ++seed) run_all([&] { return ffn_job(seed); }, layer_rows);
  for (const std::string& row : layer_rows) {
    if (row != "ffn_sm90") continue;
    for (uint64_t seed = 0; seed < 5; ++seed) run_all([&] { return long_ffn_job(seed); }, {row});
  }
  // With rows of x in registers, and of what gates and ups have left.
  for (const std::string& row : layer_rows) {
    if (row != "ffn_qmm_sm90") continue;
    for (uint64_t seed = 0; seed < 12; ++seed) run_all([&] { return held_ffn_job(seed); }, {row});
  }
  // Places in shared memory that are filled again, in each of its kernels.
  for (const std::string& row : layer_rows) {
    if (row != "ffn_one_sm90") continue;
    for (uint64_t seed = 0; seed < 18; ++seed) run_all([&] { return deep_ffn_job(seed); }, {row});
  }
  // With tiles of several sizes.
  std::vector<std::string> sized;
  for (const std::string& row : rows) {
    if (row.starts_with("segmented_sm")) sized.push_back(row);
  }
  const auto run_sized = [&](const test::Case& c) {
    run_all([&] { return job_of(c, test::Side::left); }, sized);
  };
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (unsigned turned = 0; turned < 4; ++turned) {
      for (TileSize size : {TileSize::small, TileSize::medium, TileSize::large}) {
        test::Case c = segments_case(dtype, turned, size, turned);
        c.precision = Precision::exact;
        size == TileSize::small ? run_rows(c) : run_sized(c);
        // By limbs, whatever there is to multiply.
        c.deterministic = true;
        for (Precision precision : {Precision::native, Precision::fast}) {
          c.precision = precision;
          if (dtype == DType::f32 && size != TileSize::medium) run_sized(c);
        }
      }
    }
    test::Case many = segments_case(dtype, 0, TileSize::many, 0);
    many.precision = Precision::native;
    many.deterministic = true;
    run_sized(many);
    if (dtype != DType::f32) continue;
    // Limbs that no cache holds, which are made in another order.
    test::Case deep =
        product_case(Op::segmented_mm, std::nullopt, dtype, false, 4, 4, 49216, test::Ids::uniform);
    deep.precision = Precision::native;
    deep.deterministic = true;
    run_sized(deep);
  }
  const std::vector<std::string> routers = rows_of("route"), permuters = rows_of("permute");
  for (uint64_t seed = 0; seed < 12; ++seed) {
    run_all([&] { return route_job(seed); }, routers);
    run_all([&] { return permute_job(seed); }, permuters);
    run_all([&] { return unpermute_job(seed); }, permuters);
  }
}

}  // namespace moeblas::gpu
