// SPDX-License-Identifier: Apache-2.0
// Compares with jinja2, by tests/golden/chat_templates.json, written by chat_templates.py beside
// it.
#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>

#include "base/file.h"
#include "base/json_integers.h"
#include "nibble/error.h"
#include "tests/shared_data.h"

namespace nibble {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string Repeat(const std::string& text, size_t count) {
  std::string result;
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

std::string ReadTemplate(const std::string& path) {
  if (path.ends_with(".jinja")) return ReadFile(path, 1 << 20);
  return JsonGet<std::string>(ReadJsonFile(path), "chat_template", path);
}

// The error of rendering, or "" if it renders.
std::string ErrorOf(const std::string& source, const Json& extra = Json::object()) {
  try {
    ChatTemplate::Parse(source, "test").Render(Json::array(), false, extra);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::string Rendered(const std::string& source, const Json& extra = Json::object()) {
  return ChatTemplate::Parse(source, "test").Render(Json::array(), false, extra);
}

void CheckGolden(const Json& golden, const std::string& source, const Json& messages,
                 const Json& extra) {
  SCOPED_TRACE(golden.at("name").get<std::string>() + ": " + source.substr(0, 300));
  const bool prompt = golden.value("add_generation_prompt", false);
  std::string text = "poison", error;
  try {
    ChatTemplate chat_template = ChatTemplate::Parse(source, "golden");
    std::tm now{};
    std::istringstream(golden.at("now").get<std::string>()) >> std::get_time(&now, "%Y-%m-%dT%T");
    std::mktime(&now);  // sets the weekday and the day of the year
    chat_template.SetTime(now);
    text = chat_template.Render(messages, prompt, extra);
  } catch (const Error& e) {
    error = e.what();
  }
  if (golden.contains("expected")) {
    EXPECT_EQ(error, "");
    EXPECT_EQ(text, golden.at("expected").get<std::string>());
  } else if (golden.contains("raised")) {
    EXPECT_EQ(error, golden.at("raised").get<std::string>());
  } else {
    EXPECT_THAT(error, HasSubstr("golden: line ")) << golden.at("fails") << " rendered " << text;
  }
}

class ChatTemplateGolden : public ::testing::Test {
 protected:
  const std::string path_ = NIBBLE_SOURCE_DIR "/tests/golden/chat_templates.json";
  const Json goldens_ = ParseJsonKeepingIntegers(ReadFile(path_, kMaxJsonBytes), path_);
};

TEST_F(ChatTemplateGolden, FeaturesRenderAsJinja2) {
  int checked = 0;
  for (Json golden : goldens_.at("cases")) {
    if (!golden.contains("source")) continue;
    golden["now"] = goldens_.at("now");
    const Json messages = {{{"role", "system"}, {"content", "x"}}};
    CheckGolden(golden, golden.at("source").get<std::string>(), messages, goldens_.at("data"));
    ++checked;
  }
  EXPECT_GE(checked, 400);
}

TEST_F(ChatTemplateGolden, ModelTemplatesRenderAsJinja2) {
  std::string absent;
  int checked = 0;
  for (Json golden : goldens_.at("cases")) {
    if (!golden.contains("file")) continue;
    const auto file = golden.at("file").get<std::string>();
    const std::string path =
        file.starts_with("samples/") ? NIBBLE_SOURCE_DIR "/" + file : test::DataPath(file);
    if (!std::filesystem::exists(path)) {
      absent = file;
      continue;
    }
    golden["now"] = goldens_.at("now");
    CheckGolden(golden, ReadTemplate(path), golden.at("messages"), golden.at("extra"));
    ++checked;
  }
  EXPECT_GE(checked, 61);  // those of the sample model and of tokenizers in tests/data
  if (!absent.empty()) GTEST_SKIP() << "needs shared/" << absent;
  EXPECT_GE(checked, 427);
}

// ---- attacks: every one ends soon, with an error that names the bound ----

TEST(ChatTemplateAttack, NestingIsBounded) {
  const std::string deep = "nested deeper";
  const size_t n = 100'000;
  EXPECT_THAT(ErrorOf("{{ " + Repeat("(", n) + "1" + Repeat(")", n) + " }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{{ " + Repeat("[", n) + Repeat("]", n) + " }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{{ " + Repeat("{'a':", n) + "1" + Repeat("}", n) + " }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{{ " + Repeat("not ", n) + "1 }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{{ " + Repeat("-", n) + "1 }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{{ x" + Repeat(".a", n) + " }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{{ x" + Repeat("[0]", n) + " }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{{ x" + Repeat("()", n) + " }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{{ x" + Repeat("|trim", n) + " }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{{ " + Repeat("f(", n) + Repeat(")", n) + " }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{{ 1" + Repeat(" if 1 else 1", 80'000) + " }}"), HasSubstr(deep));
  EXPECT_THAT(ErrorOf(Repeat("{% if 1 %}", n)), HasSubstr(deep));
  EXPECT_THAT(ErrorOf(Repeat("{% for x in y %}", 60'000)), HasSubstr(deep));
  EXPECT_THAT(ErrorOf(Repeat("{% macro m() %}", 60'000)), HasSubstr(deep));
  EXPECT_THAT(ErrorOf(Repeat("{% set x %}", 90'000)), HasSubstr(deep));
  EXPECT_THAT(ErrorOf("{% for " + Repeat("(", n) + Repeat(")", n) + " %}"), HasSubstr(deep));
}

TEST(ChatTemplateAttack, WideExpressionsDoNotRecurse) {
  EXPECT_EQ(Rendered("{{ 1" + Repeat("+1", 99'999) + " }}"), "100000");
  EXPECT_EQ(Rendered("{{ 0" + Repeat(" or 0", 99'999) + " }}"), "0");
  EXPECT_EQ(Rendered("{{ 'a'" + Repeat("~'a'", 99'999) + " }}"), Repeat("a", 100'000));
  EXPECT_EQ(Rendered("{% if 0 %}" + Repeat("{% elif 0 %}", 50'000) + "{% else %}x{% endif %}"),
            "x");
}

TEST(ChatTemplateAttack, RecursionIsBounded) {
  EXPECT_THAT(ErrorOf("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("macro calls"));
  EXPECT_THAT(ErrorOf("{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}"
                      "{% endmacro %}{{ f() }}"),
              HasSubstr("macro calls"));
  EXPECT_THAT(ErrorOf("{% macro f(a=f()) %}{% endmacro %}{{ f() }}"), HasSubstr("macro calls"));
  // The widest tree of calls within the depth bound runs out of steps.
  EXPECT_THAT(ErrorOf("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
                      "{{ f(60) }}"),
              HasSubstr("steps"));
  // The deepest recursion that can be: a macro calls itself from within nested lists and blocks.
  const std::string body = Repeat("{% if 1 %}", 90) + "{{ " + Repeat("[", 60) + "f()" +
                           Repeat("]", 60) + " }}" + Repeat("{% endif %}", 90);
  EXPECT_THAT(ErrorOf("{% macro f() %}" + body + "{% endmacro %}{{ f() }}"),
              HasSubstr("nested deeper"));
}

TEST(ChatTemplateAttack, RecursionThroughEveryBlockIsBounded) {
  const std::pair<std::string, std::string> blocks[] = {
      {"{% with a=1 %}", "{% endwith %}"},      {"{% for a in [1] %}", "{% endfor %}"},
      {"{% filter trim %}", "{% endfilter %}"}, {"{% set a %}", "{% endset %}{{ a }}"},
      {"{% call g() %}", "{% endcall %}"},      {"{% for a in [1] if f() %}", "{% endfor %}"}};
  for (const auto& [open, close] : blocks) {
    const std::string body = Repeat(open, 30) + "{{ f() }}" + Repeat(close, 30);
    EXPECT_THAT(ErrorOf("{% macro g() %}{{ caller() }}{% endmacro %}{% macro f() %}" + body +
                        "{% endmacro %}{{ f() }}"),
                AnyOf(HasSubstr("nested deeper"), HasSubstr("macro calls")))
        << open;
  }
  EXPECT_THAT(
      ErrorOf("{% for i in [1] recursive %}" + Repeat("{% if 1 %}", 90) + "{{ " + Repeat("[", 60) +
              "loop([1])" + Repeat("]", 60) + " }}" + Repeat("{% endif %}", 90) + "{% endfor %}"),
      HasSubstr("nested deeper"));
}

TEST(ChatTemplateAttack, WorkIsBounded) {
  const std::string nest = "{% for a in range(1000) %}{% for b in range(1000) %}";
  const std::string end = "{% endfor %}{% endfor %}";
  for (const std::string& source : {
           nest + "{% for c in range(1000) %}{% endfor %}" + end,
           nest + "x" + end,
           nest + "{% set x = range(1000) %}" + end,
           std::string("{% for x in range(99999) %}{{ range(99999)|length }}{% endfor %}"),
           std::string("{% set ns = namespace(l=[1]) %}{% for i in range(60) %}"
                       "{% set ns.l = ns.l + ns.l %}{% endfor %}"),
           std::string("{% set ns = namespace(l=[1]) %}{% for i in range(90) %}"
                       "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}"),
           std::string("{% set ns = namespace(l=[1]) %}{% for i in range(90) %}"
                       "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}"),
           std::string("{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(90) %}"
                       "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}"
                       "{{ ns.l == ns.m }}"),
           std::string("{{ range(99999)|map('string')|join|list|map('upper')|join|list|length }}"
                       "{{ [range(99999)]*99999 }}"),
           std::string("{{ [1]*10**9 }}"),
           std::string("{{ ['\\x00'*2000000] }}"),
           std::string("{% set s = 'a'*4000000 %}{% for i in range(100) %}{{ s.replace('b','c')|"
                       "length }}{% endfor %}"),
           std::string("{% set s = 'a'*4000000 %}{% for i in range(100) %}{% if s[1:] %}{% endif %}"
                       "{% endfor %}"),
           std::string("{% set s = 'a'*4000000 %}{% for i in range(100) %}{% set t = s ~ 'b' %}"
                       "{% endfor %}"),
           std::string("{{ ('a '*2000000).split() }}"),
           std::string("{{ ('a'*4000000)|list|length }}"),
       }) {
    EXPECT_THAT(ErrorOf(source), HasSubstr("steps")) << source;
  }
  // A search for a periodic text is linear, not quadratic.
  EXPECT_EQ(Rendered("{{ (('a'*2000000 ~ 'b') in ('a'*4000000)) }}"), "False");
  EXPECT_EQ(Rendered("{{ ('a'*2000000).strip('b'*2000000)|length }}"), "2000000");
}

// Each template takes few steps but touches megabytes, or keeps them.
TEST(ChatTemplateAttack, EveryByteIsCharged) {
  const std::string text = "{% set s = 'a'*4000000 %}{% set t = 'a'*3999999 ~ 'b' %}";
  const auto loop = [](const std::string& body) {
    return "{% for i in range(100000) %}" + body + "{% endfor %}";
  };
  const std::string dict = text + "{% set d = {s: 1} %}";
  for (const std::string& source : {
           dict + loop("{% if d[s] %}{% endif %}"),
           dict + loop("{% if d[t] %}{% endif %}"),
           dict + loop("{% if d.get(t) %}{% endif %}"),
           dict + loop("{% if t in d %}{% endif %}"),
           dict + loop("{% for k in d %}{% endfor %}"),
           dict + loop("{% set x = d.keys() %}"),
           dict + loop("{% set x = d|items %}"),
           dict + loop("{% set x = namespace(d) %}"),
           dict + loop("{% set x = {s: 1, t: 2, s: 3} %}"),
           dict + loop("{% set x = d|dictsort %}"),
           dict + loop("{% if d == {t: 1} %}{% endif %}"),
           text + "{% set x = [" + Repeat("{s:1},", 1'000) + "] %}",
           text + "{% set x = [" + Repeat("s[s],", 1'000) + "] %}",
           text + loop("{% set x = ''[s] is defined %}"),
           text + "{% if t.startswith((s,)*100000) %}{% endif %}",
           text + "{% if t.endswith((t ~ 'a',)*100000) %}{% endif %}" + loop("{{ t.endswith(s) }}"),
           text + "{% set x = ([s]*100000)|map('int')|list %}",
           text + "{% set x = ([s]*100000)|map('length')|list %}",
           text + "{% set x = ([s]*100000)|map('trim')|list %}",
           text + "{% set x = (range(100000)|map(attribute=s)|list) %}",
           text + loop("{% set x = s.replace('a', '') %}"),
           text + loop("{% set x = s.replace('', '', 0) %}"),
           text + loop("{% set x = s.splitlines() %}"),
           text + loop("{% set x = s.split('b', 0) %}"),
           text + loop("{% set x = s < t %}"),
           text + loop("{% set x = s[-1:] %}"),
           text + loop("{% set x = s[-1] %}"),
           text + loop("{% set x = s|length %}"),
           text + loop("{% set x = s|first %}"),
           text + "{% macro m(n) %}{{ s }}{% if n %}{{ m(n-1) }}{% endif %}{% endmacro %}"
                  "{{ m(90) }}",
           Repeat("{% for a in range(2) %}", 60) + Repeat("{% if zz %}{% endif %}", 1'000) +
               Repeat("{% endfor %}", 60),
       }) {
    EXPECT_THAT(ErrorOf(source), HasSubstr("steps")) << source.substr(0, 300);
  }
}

TEST(ChatTemplateAttack, NamesAndArgumentsAreBounded) {
  const std::string name(257, 'n');
  EXPECT_EQ(Rendered("{% set " + name.substr(1) + " = 1 %}{{ " + name.substr(1) + " }}"), "1");
  EXPECT_THAT(ErrorOf("{% set " + name + " = 1 %}"), HasSubstr("longer than 256 bytes"));
  EXPECT_THAT(ErrorOf("{{ x." + name + " }}"), HasSubstr("longer than 256 bytes"));
  EXPECT_EQ(Rendered("{{ 'a'.strip('a'" + Repeat(",1", 63) + ") }}"), "");
  for (const std::string& source : {"{{ 'a'.strip('a'" + Repeat(",1", 64) + ") }}",
                                    "{{ []|map('join'" + Repeat(",x=1", 64) + ") }}",
                                    "{% macro m(" + Repeat("a,", 65) + ") %}{% endmacro %}"}) {
    EXPECT_THAT(ErrorOf(source), HasSubstr("more than 64 arguments")) << source;
  }
}

TEST(ChatTemplateAttack, DictionariesWithManyKeysAreBounded) {
  std::string keys = "{% set d = {";
  for (int i = 0; i < 50'000; ++i) keys += "'" + std::to_string(i) + "':0,";
  EXPECT_THAT(ErrorOf(keys + "} %}"), HasSubstr("steps"));
}

TEST(ChatTemplateAttack, TextIsBounded) {
  const std::string bound = "longer than 4194304 bytes";
  for (const char* source : {
           "{{ 'a'*10**9 }}",
           "{{ 10**15 * 'ab' }}",
           "{{ 'a'*9223372036854775807 }}",
           "{% for i in range(100000) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' }}"
           "{% endfor %}",
           "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}"
           "{% endfor %}",
           "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}"
           "{% endfor %}",
           "{{ ('a'*4000000).replace('a'*1000, 'a'*2000) }}",
           "{{ ('a'*4000000).replace('', 'aa') }}",
           "{{ range(99)|join('a'*100000) }}",
           "{{ ('a'*100000).join('b'*100) }}",
           "{{ [1,[2,[3]]]|tojson(indent='a'*2000000) }}",
           "{% set x %}{% for i in range(90000) %}{{ 'a'*1000 }}{% endfor %}{% endset %}",
           "{% macro m() %}{% for i in range(90000) %}{{ 'a'*1000 }}{% endfor %}{% endmacro %}"
           "{{ m() }}",
       }) {
    EXPECT_THAT(ErrorOf(source), HasSubstr(bound)) << source;
  }
  EXPECT_EQ(Rendered("{{ 'a'*4194304 }}").size(), 4'194'304u);
}

TEST(ChatTemplateAttack, NumbersAreBounded) {
  EXPECT_THAT(ErrorOf("{{ range(10**9) }}"), HasSubstr("range() of more than 100000 "));
  EXPECT_THAT(ErrorOf("{{ range(100001) }}"), HasSubstr("range() of more than 100000 "));
  EXPECT_THAT(ErrorOf("{{ range(-9223372036854775807, 9223372036854775807) }}"),
              HasSubstr("range()"));
  EXPECT_EQ(Rendered("{{ range(100000)|length }}"), "100000");
  EXPECT_EQ(Rendered("{{ range(9223372036854775806, 9223372036854775807, 5)|length }}"), "1");
  const std::string max = "170141183460469231731687303715884105727";  // of 128 bits
  for (const std::string& source :
       {std::string("{{ 10**99 }}"), "{{ " + max + " + 1 }}", "{{ -" + max + " - 2 }}",
        "{{ " + max + " * 2 }}", "{{ (-" + max + " - 1) // -1 }}", "{{ -(-" + max + " - 1) }}",
        "{{ 1" + max + " + 1 }}"}) {
    EXPECT_THAT(ErrorOf(source), HasSubstr("overflow")) << source;
  }
  EXPECT_EQ(Rendered("{{ (-" + max + " - 1) % -1 }}{{ 1**9223372036854775807 }}"), "01");
  EXPECT_EQ(Rendered("{{ [1,2][9223372036854775807:] }}{{ [1,2][:-9223372036854775807] }}"
                     "{{ [1,2][::9223372036854775807] }}{{ [1,2][::-9223372036854775807] }}"
                     "{{ [1,2][-9223372036854775807 - 1] }}{{ [1,2][" +
                     max + ":] }}"),
            "[][][1][2][]");
  EXPECT_THAT(ErrorOf("{{ range(5)[::9223372036854775807][::9223372036854775807] }}"),
              HasSubstr("overflow"));
  EXPECT_EQ(Rendered("{{ 1" + Repeat("0", 4'299) + " }}"), "1" + Repeat("0", 4'299));
  EXPECT_THAT(ErrorOf("{{ 1" + Repeat("0", 4'300) + " }}"), HasSubstr("out of range"));
  EXPECT_THAT(ErrorOf("{{ ('1' * 5000) | int }}"), HasSubstr("more than 4300 digits"));
  EXPECT_THAT(ErrorOf("{{ 0xfffffffffffffffff }}"), HasSubstr("out of range"));
  EXPECT_THAT(ErrorOf("{{ 1e999 }}"), HasSubstr("out of range"));
  EXPECT_EQ(Rendered("{{ x }}", {{"x", UINT64_MAX}}), "18446744073709551615");
  EXPECT_EQ(Rendered("{{ 1e308 * 10 }} {{ 3 | tojson(indent=10**15) }} {{ '9' * 30 | int }}"),
            "inf 3 " + Repeat("9", 30));
  EXPECT_EQ(Rendered("{{ (1e308 * 10) | int }} {{ (1e308 * 10 - 1e308 * 10) | int(7) }}"), "0 7");
  // NaN has no order: sorting neither crashes nor leaves anything out.
  EXPECT_EQ(
      Rendered("{% set n = 1e308 * 10 - 1e308 * 10 %}{{ ([n, 1, n, 0] * 99) | sort | length }}"
               "{{ [n, n] | groupby('real') | length }}{{ [n, 1] | max is number }}"),
      "3962True");
}

// Sizes that an argument asks for.
TEST(ChatTemplateAttack, ArgumentsAreBounded) {
  for (const char* source : {"{{ '%99999999d' % 1 }}",
                             "{{ '%*d' % (10**17, 1) }}",
                             "{{ '%.99999d' % 1 }}",
                             "{{ '%.*f' % (10**17, 1.5) }}",
                             "{{ '{:99999999}'.format(1) }}",
                             "{{ '{:.9999f}'.format(1.5) }}",
                             "{{ '{:{}}'.format('a', 10**17) }}",
                             "{{ '{:99999999999999999999}'.format(1) }}",
                             "{{ '%99999999999999999999d' % 1 }}",
                             "{{ '{:{:{}}}'.format(1, 2, 3) }}",
                             "{{ 'a' | center(10**17) }}",
                             "{{ 'a'.ljust(10**9) }}",
                             "{{ '1'.zfill(10**9) }}",
                             "{{ '\\t'.expandtabs(10**17) }}",
                             "{{ ('a\\n' * 9) | indent(10**17) }}",
                             "{{ ('a\\n' * 999) | indent('x' * 9999) }}",
                             "{{ [1] | batch(10**17, 0) | list }}",
                             "{{ [1] | slice(10**17) | list }}",
                             "{{ [1] | batch(0) | list }}",
                             "{{ 1 | round(-10**19) }}",
                             "{{ '%c' % 1114112 }}",
                             "{{ '{:c}'.format(55296) }}",
                             "{{ '{:c}'.format(-1) }}",
                             "{{ 'a'.find('a', 10**20) }}",
                             "{{ loop.cycle(1) }}",
                             "{{ joiner('a' * 4000000)() ~ x.y }}"}) {
    EXPECT_THAT(ErrorOf(source), HasSubstr("test: line 1: ")) << source;
  }
  EXPECT_EQ(Rendered("{{ 1.5 | round(10**17) }}{{ 1.5 | round(-10**17) }}{{ 15 | round(-10**17) }}"
                     "{{ 'abc'.find('', 10**17) }}{{ 'abc'.find('c', -10**17) }}"
                     "{{ 'a' | truncate(9223372036854775807, leeway=9223372036854775807) }}"),
            "1.50.00-12a");
}

TEST(ChatTemplateAttack, WorkOfFiltersAndMethodsIsBounded) {
  const auto loop = [](const std::string& body) {
    return "{% set s = 'ab ' * 1000000 %}{% set l = range(99999) | list %}"
           "{% for i in range(100000) %}" +
           body + "{% endfor %}";
  };
  for (const char* body : {"{% set x = l | sort %}",
                           "{% set x = l | sum %}",
                           "{% set x = l | max %}",
                           "{% set x = l | unique | list %}",
                           "{% set x = l | batch(1) | list %}",
                           "{% set x = s.count('ab') %}",
                           "{% set x = s.rfind('ab') %}",
                           "{% set x = s.find('c') %}",
                           "{% set x = s.rsplit('ab', 1) %}",
                           "{% set x = s.rsplit(none, 1) %}",
                           "{% set x = s.partition('c') %}",
                           "{% set x = s.isalpha() %}",
                           "{% set x = s.istitle() %}",
                           "{% set x = s.islower() %}",
                           "{% set x = s.casefold() %}",
                           "{% set x = s | title %}",
                           "{% set x = s | wordcount %}",
                           "{% set x = s | truncate %}",
                           "{% set x = s | escape %}",
                           "{% set x = s | urlencode %}",
                           "{% set x = s | indent %}",
                           "{% set x = s | float %}",
                           "{% set x = '%.1s' % s %}",
                           "{% set x = '{:.1}'.format(s) %}",
                           "{% set x = s % () %}",
                           "{% set x = s.format() %}",
                           "{% set x = s is lower %}",
                           "{% set x = l.index(99998) %}",
                           "{% set x = l.count(0) %}",
                           "{% set x = dict(l | slice(50000)) %}",
                           "{% set x = s.removeprefix(s) %}",
                           "{% set x = s.startswith('b', 1) %}",
                           "{% set x = s.expandtabs() %}",
                           "{% set x = s.center(1) %}",
                           "{{ loop.changed(l) }}",
                           "{{ '{}'.format(*l) }}",
                           "{% set x = s.zfill(1) %}"}) {
    EXPECT_THAT(ErrorOf(loop(body)), HasSubstr("steps")) << body;
  }
  EXPECT_THAT(ErrorOf("{% for i in [[1]] recursive %}{{ loop([i]) }}{% endfor %}"),
              HasSubstr("macro calls"));
  EXPECT_THAT(
      ErrorOf("{% for i in [1] recursive %}{{ loop([1, 1]) if loop.depth < 60 }}{% endfor %}"),
      HasSubstr("steps"));
  EXPECT_THAT(
      ErrorOf("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}"),
      HasSubstr("macro"));
}

// Macros and loops hold the scope they are made in, so they must not leave it.
TEST(ChatTemplateAttack, ScopesAreNotLeft) {
  const std::string start = "{% set ns = namespace() %}{% for x in ['long enough for the heap'] %}",
                    macro = "{% macro m() %}{{ x }}{% endmacro %}",
                    end = "{% endfor %}{{ ns.m() }}";
  for (const char* leave :
       {"{% set ns.m = m %}", "{% set ns.m = [m] %}", "{% set ns.m = {'a': m} %}",
        "{% set ns.m = (m, 1) | first %}", "{% set ns.m = loop %}", "{% set ns.m = loop.cycle %}",
        "{% set ns.m = namespace(m=m) %}", "{% set ns.m = cycler(m) %}",
        "{% set ns.m = dict(m=m) %}", "{% if loop.changed(m) %}{% endif %}",
        "{% if loop.changed(loop) %}{% endif %}"}) {
    EXPECT_THAT(ErrorOf(start + macro + leave + end), HasSubstr("namespace")) << leave;
  }
  EXPECT_EQ(Rendered(start + macro + "{% set m2 = m %}{{ m2() }}{% endfor %}{{ m2 is defined }}"),
            "long enough for the heapFalse");
  EXPECT_THAT(ErrorOf("{% set c = cycler(1) %}{% set c.position = 9 %}{{ c.next() }}"),
              HasSubstr("not a namespace"));
}

TEST(ChatTemplateAttack, NothingIsReachable) {
  for (const char* source : {"{{ ''.__class__.__mro__[1].__subclasses__() }}",
                             "{{ self.__init__.__globals__ }}",
                             "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
                             "{{ open('/etc/passwd') }}",
                             "{{ config.items() }}",
                             "{{ lipsum.__globals__ }}",
                             "{{ range.__self__.x }}",
                             "{% include '/etc/passwd' %}",
                             "{% import 'os' as os %}",
                             "{% extends 'x' %}",
                             "{{ environ['HOME'] }}",
                             "{{ messages.append(1) }}",
                             "{{ messages.__len__() }}",
                             "{{ (''|attr('__class__')).x }}",
                             "{{ '{0.__class__.x}'.format(1) }}",
                             "{{ '{0.__class__.__init__}'.format(range) ~ x.y }}",
                             "{{ namespace.__init__() }}",
                             "{{ raise_exception.__globals__.x }}",
                             "{% set messages.x = 1 %}",
                             "{{ loop.x.y }}",
                             "{{ strftime_now() }}",
                             "{{ getenv('HOME') }}",
                             "{% call f() %}{% endcall %}"}) {
    EXPECT_THAT(ErrorOf(source), HasSubstr("test: line 1: ")) << source;
  }
  EXPECT_EQ(Rendered("{{ strftime_now('%9999999999d') }}{{ strftime_now('x'*9999) }}"), "");
}

TEST(ChatTemplateAttack, NoCyclesOfNamespaces) {
  const std::string ns = "{% set a = namespace() %}";
  EXPECT_THAT(ErrorOf(ns + "{% set a.a = a %}"), HasSubstr("namespace"));
  EXPECT_THAT(ErrorOf(ns + "{% set a.a = [a] %}"), HasSubstr("namespace"));
  EXPECT_THAT(ErrorOf(ns + "{% set a.a = {'x': a} %}"), HasSubstr("namespace"));
  EXPECT_THAT(ErrorOf(ns + "{% for x in [1] %}{% set a.a = loop %}{% endfor %}"),
              HasSubstr("loop"));
  EXPECT_THAT(ErrorOf(ns + "{% set a.a = [] %}{% for x in range(200) %}{% set a.a = [a.a] %}"
                           "{% endfor %}"),
              HasSubstr("nested 100 deep"));
}

TEST(ChatTemplateAttack, OddBytesAndSizes) {
  EXPECT_THAT(ErrorOf("{{ '\xff' }}"), HasSubstr("UTF-8"));
  EXPECT_THAT(ErrorOf(std::string(1 << 20, 'a') + "a"), HasSubstr("longer than 1048576"));
  EXPECT_EQ(Rendered(std::string(1 << 20, 'a')).size(), size_t{1} << 20);
  EXPECT_EQ(Rendered(std::string("a\0b", 3)), std::string("a\0b", 3));
  EXPECT_THAT(ErrorOf(std::string("{{ a\0b }}", 9)), HasSubstr("unexpected character"));
  EXPECT_EQ(Rendered(""), "");
  // Many tags that look like the end of a raw block, and unclosed tags: linear time.
  EXPECT_THAT(ErrorOf("{% raw %}" + Repeat("{% ", 300'000)), HasSubstr("end of raw"));
  EXPECT_THAT(ErrorOf(Repeat("{% raw", 150'000)), HasSubstr("line 1"));
  EXPECT_THAT(ErrorOf(Repeat("{#", 500'000)), HasSubstr("comment"));
  EXPECT_THAT(ErrorOf("{{ " + Repeat("[", 500'000)), HasSubstr("not closed"));
  EXPECT_THAT(ErrorOf("{{ '" + Repeat("\\'", 500'000)), HasSubstr("not closed"));
  EXPECT_THAT(ErrorOf(Repeat("{%", 500'000)), HasSubstr("line 1"));
  EXPECT_THAT(ErrorOf("{{ a" + Repeat(" ", 1'000'000) + "}}{"), "");
  // Bytes that are not UTF-8 in the caller's text pass through, one character each.
  EXPECT_EQ(
      Rendered("{{ x }}{{ x|length }}{{ x[1:] }}{{ x.strip('\\x80') }}", {{"x", "\xff\xc3z"}}),
      "\xff\xc3z3\xc3z\xff\xc3z");
}

// ---- the class ----

TEST(ChatTemplate, LimitsOfRecursionAreReachable) {
  EXPECT_EQ(Rendered("{% macro f(n) %}{% if n %}{{ f(n-1) }}{% else %}end{% endif %}{% endmacro %}"
                     "{{ f(99) }}"),
            "end");
  EXPECT_EQ(Rendered(Repeat("{% if 1 %}", 90) + "x" + Repeat("{% endif %}", 90)), "x");
}

// The order is that of transformers: ensure_ascii, indent, separators, sort_keys.
TEST(ChatTemplate, ArgumentsOfToJsonHaveTheirOrder) {
  const std::string value = "{{ {'b': '\u00E9', 'a': [1, 2]} | tojson(";
  EXPECT_EQ(Rendered(value + ") }}"), "{\"b\": \"\u00E9\", \"a\": [1, 2]}");
  EXPECT_EQ(Rendered(value + "false, none, (',', ':')) }}"), "{\"b\":\"\u00E9\",\"a\":[1,2]}");
  EXPECT_EQ(Rendered(value + "true, none, (';', '='), true) }}"),
            "{\"a\"=[1;2];\"b\"=\"\\u00e9\"}");
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_EQ(ErrorOf("a\n{{ b }}\n{{ c.d }}"), "test: line 3: 'c' is undefined");
  EXPECT_THAT(ErrorOf("a\n\n{% if %}"), HasSubstr("test: line 3: "));
}

TEST(ChatTemplate, RefusesWithAReasonOfItsOwnOrOurs) {
  EXPECT_EQ(ErrorOf("{{ raise_exception('no tools') }}"), "no tools");
  EXPECT_EQ(ErrorOf("{{ raise_exception('no' if false) }}"),
            "the chat template refuses these messages");
}

TEST(ChatTemplate, VariablesHaveTheirOrder) {
  const std::string source = "{{ tools is none }}{{ documents is none }}{{ messages }}";
  EXPECT_EQ(Rendered(source, {{"messages", 5}}), "TrueTrue[]");
  EXPECT_EQ(Rendered(source, {{"tools", Json::array()}}), "FalseTrue[]");
  EXPECT_THROW(ChatTemplate::Parse("", "test").Render(Json::object(), false), Error);
  EXPECT_THROW(ChatTemplate::Parse("", "test").Render(Json::array(), false, Json(1)), Error);
  const std::vector<ChatMessage> messages = {{"user", "a"}, {"assistant", "b"}};
  EXPECT_EQ(ChatTemplate::Parse("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}",
                                "test")
                .Render(messages, false),
            "user:a;assistant:b;");
}

class ChatTemplateLoad : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(NIBBLE_BINARY_DIR) / "chat_template_test";
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name) << text;
  }
  std::string Loaded() { return ChatTemplate::Load(dir_.string())->Render(Json::array(), false); }
  std::filesystem::path dir_;
};

TEST_F(ChatTemplateLoad, PrefersTheFileAndReadsSpecialTokens) {
  EXPECT_FALSE(ChatTemplate::Load(dir_.string()).has_value());
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"},
        "pad_token": null})");
  EXPECT_FALSE(ChatTemplate::Load(dir_.string()).has_value());
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"},
        "pad_token": null, "chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}c"})");
  EXPECT_EQ(Loaded(), "<s></s>c");
  Write("chat_template.jinja", "{{ bos_token }}f");
  EXPECT_EQ(Loaded(), "<s>f");
  std::filesystem::remove(dir_ / "tokenizer_config.json");
  EXPECT_EQ(Loaded(), "f");
}

TEST_F(ChatTemplateLoad, WithToolsTheTemplateOfThatName) {
  const auto with_tools = [&](const Json& tools) {
    return ChatTemplate::Load(dir_.string())->Render(Json::array(), false, {{"tools", tools}});
  };
  const Json tools = {{{"type", "function"}}};
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "d"},
        {"name": "tool_use", "template": "t{{ tools | length }}"}]})");
  EXPECT_EQ(Loaded(), "d");
  EXPECT_EQ(with_tools(Json::array()), "d");
  EXPECT_EQ(with_tools(nullptr), "d");
  EXPECT_EQ(with_tools(tools), "t1");
  Write("chat_template.jinja", "file");
  std::filesystem::create_directory(dir_ / "additional_chat_templates");
  Write("additional_chat_templates/tool_use.jinja", "f{{ tools | length }}");
  EXPECT_EQ(Loaded(), "file");
  EXPECT_EQ(with_tools(tools), "f1");
  EXPECT_EQ(ChatTemplate::Load(dir_.string())->tool_source(), "f{{ tools | length }}");
  std::filesystem::rename(dir_ / "additional_chat_templates/tool_use.jinja",
                          dir_ / "tool_use.jinja");  // as a checkpoint has it
  EXPECT_EQ(with_tools(tools), "f1");
}

TEST_F(ChatTemplateLoad, FilesOfOlderModels) {
  Write("chat_template.json", R"({"chat_template": "{{ bos_token }}old"})");
  EXPECT_EQ(Loaded(), "old");
  Write("special_tokens_map.json", R"({"bos_token": {"content": "<s>"}})");
  EXPECT_EQ(Loaded(), "<s>old");
  Write("tokenizer_config.json", R"({"bos_token": "<b>"})");
  EXPECT_EQ(Loaded(), "<b>old") << "tokenizer_config.json comes first";
  Write("tokenizer_config.json", R"({"added_tokens_decoder": {}})");
  EXPECT_EQ(Loaded(), "old") << "as transformers reads it";
  Write("tokenizer_config.json", R"({"chat_template": "new"})");
  EXPECT_EQ(Loaded(), "new");
}

TEST_F(ChatTemplateLoad, TakesTheDefaultOfAList) {
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"},
        {"name": "default", "template": "d"}]})");
  EXPECT_EQ(Loaded(), "d");
  for (const char* bad :
       {R"({"chat_template": [{"name": "x", "template": "t"}]})", R"({"chat_template": [1]})",
        R"({"chat_template": 1})", "[]", "{", R"({"chat_template": "{% if %}"})",
        R"({"chat_template": "x", "bos_token": 1})",
        R"({"chat_template": "x", "bos_token": {"x": 1}})"}) {
    Write("tokenizer_config.json", bad);
    EXPECT_THROW(Loaded(), Error) << bad;
  }
}

}  // namespace
}  // namespace nibble
