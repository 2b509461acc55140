// The text of the format headers: what Metal's compiler or nvcc would refuse and a C++ compiler on
// the host would not.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

namespace moeblas::test {
namespace {

struct Rule {
  const char* name;
  const char* pattern;  // must not occur in code
  const char* sample;   // text in which the pattern must be found
};
const Rule kRules[] = {
    {"no standard headers", R"(#include <)", "#include <cmath>"},
    {"no std names", R"(\bstd::)", "std::min(a, b)"},
    {"no pointers", R"([\w>]\*)", "MB_FN float f(const float* p) {"},
    {"no references", R"([\w>]&[^&])", "MB_FN void f(float& x) {"},
    {"no static data", R"(\bstatic\s+(constexpr|const|inline)\b)", "static constexpr int k = 4;"},
    {"no constexpr", R"(\bconstexpr\b)", "constexpr float kMax = 6.0f;"},
    {"no double", R"(\bdouble\b)", "double x = 1;"},
    {"no double literals", R"(\b\d+\.\d*(e[-+]?\d+)?(?![\dfe]))", "x * 0.5;"},
    {"no long long", R"(\blong long\b)", "unsigned long long u = 0;"},
    {"no sized integers", R"(\bu?int(8|16|32|64)_t\b)", "uint32_t u = 0;"},
    {"no exceptions", R"(\b(throw|try|catch|noexcept)\b)", "throw 1;"},
    {"no lambdas", R"(\[[=&]?\]\s*[({])", "auto f = [](int i) { return i; };"},
    {"no allocation", R"(\b(new|delete|malloc)\b)", "new int"},
};

// Without comments, and without the lines of portable.h that speak to one compiler alone.
std::string code_of(std::string text) {
  text = std::regex_replace(text, std::regex("//[^\n]*"), "");
  text = std::regex_replace(text, std::regex("#include <metal_stdlib>"), "");
  return std::regex_replace(text, std::regex("typedef unsigned long long uint64;"), "");
}

bool breaks(const Rule& rule, const std::string& code) {
  return std::regex_search(code, std::regex(rule.pattern));
}

TEST(FormatHeaders, EveryRuleFindsItsSample) {
  for (const Rule& rule : kRules) EXPECT_TRUE(breaks(rule, code_of(rule.sample))) << rule.name;
}

TEST(FormatHeaders, AreTextForThreeLanguages) {
  int headers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MOEBLAS_FORMATS_DIR)) {
    // formats.h is the host's list of formats, in C++20.
    if (entry.path().filename() == "formats.h") continue;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    for (const Rule& rule : kRules) {
      EXPECT_FALSE(breaks(rule, code_of(text.str()))) << entry.path() << ": " << rule.name;
    }
    ++headers;
  }
  EXPECT_GE(headers, 10);
}

}  // namespace
}  // namespace moeblas::test
