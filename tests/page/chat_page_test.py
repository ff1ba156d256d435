#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the chat page in a headless Chromium.

chat_page_test.py                      against a mock server that streams, stalls and fails
chat_page_test.py --url URL            what also holds for a real server, against that one
chat_page_test.py --screenshots DIR    also takes pictures of the page
Exits with 77 and says so where there is no Chromium.
"""
import argparse
import json
import pathlib
import re
import sys
import time
import unittest

from chrome import Browser, find_chromium
from mock_server import CODE, HOSTILE, MockServer

OPTIONS = argparse.Namespace(url=None, screenshots=None)
IDLE = "!state.running.size"
mock_only = unittest.skipIf("--url" in " ".join(sys.argv), "needs the mock server")


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(find_chromium())

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def setUp(self):
        self.mock = None if OPTIONS.url else MockServer()
        self.url = OPTIONS.url or self.mock.url
        self.expected = []  # Patterns of problems that a test causes.
        self.browser.resize(1200, 800)
        self.browser.prefer("light")
        self.browser.open(self.url)
        self.browser.run("localStorage.clear(), sessionStorage.clear(), 0")
        self.browser.problems.clear()
        self.browser.reload()
        self.browser.wait("document.getElementById('model').value")

    def tearDown(self):
        self.browser.run("0")  # Events so far come in before this answer.
        problems = [problem for problem in self.browser.problems
                    if not any(re.search(pattern, problem) for pattern in self.expected)]
        self.browser.open("about:blank")
        if self.mock:
            self.mock.close()
        self.assertEqual(problems, [])

    def send(self, text, wait=True):
        self.browser.run("document.getElementById('prompt').focus()")
        self.browser.type(text)
        self.browser.key("Enter")
        if wait:
            self.browser.wait(IDLE, 60)

    def texts(self, selector):
        return self.browser.run(f"[...document.querySelectorAll({json.dumps(selector)})]"
                                ".map(node => node.textContent)")

    def answer(self):
        return self.texts(".answer > .text")[-2]  # The last one holds tool calls.

    # What also holds for a real server.

    def test_send_streams_an_answer_and_shows_speed(self):
        self.send("Say a few words.")
        self.assertTrue(self.answer().strip())
        stats = self.texts(".stats")[-1]
        self.assertRegex(stats, r"first after [\d.]+ s")
        self.assertRegex(stats, r"\d tokens")
        self.assertRegex(stats, r"[\d,]+ of [\d,]+ prompt tokens cached")
        if self.mock:
            request = self.mock.requests[-1]
            self.assertEqual(request["messages"], [{"role": "user", "content": "Say a few words."}])
            self.assertIs(request["stream"], True)
            self.assertEqual(request["stream_options"], {"include_usage": True})
            self.assertEqual(request["model"], "smollm2-1.7b-w4a8")
            self.assertEqual(self.answer(), "Echo of Say a few words., turn 1.")
            self.assertIn("1,024 of 1,100 prompt tokens cached", stats)
            self.assertRegex(stats, r"[\d.]+ tokens/s")

    def test_text_appears_while_it_streams_and_escape_stops_it(self):
        self.send("slow Count from one to a thousand in words.", wait=False)
        self.browser.wait("document.querySelector('.answer > .text')?.textContent.length > 10")
        self.assertFalse(self.browser.run(IDLE))
        self.browser.key("Escape")
        self.browser.wait(IDLE, 2)
        self.assertIn("Stopped", self.texts(".stats")[-1])
        before = self.answer()
        time.sleep(0.3)
        self.assertEqual(self.answer(), before)
        if self.mock:
            self.assertTrue(self.mock.disconnected.wait(3), "the server was not told")

    def test_stop_button(self):
        self.send("slow Count from one to a thousand in words.", wait=False)
        self.browser.wait("document.querySelector('.answer > .text')?.textContent.length > 10")
        self.assertEqual(self.browser.run("document.getElementById('send').ariaLabel"), "Stop")
        self.browser.click("#send")
        self.browser.wait(IDLE, 2)
        self.assertEqual(self.browser.run("document.getElementById('send').ariaLabel"), "Send")

    def test_edit_truncates_and_sends_again(self):
        for text in ("Say one.", "Say two.", "Say three."):
            self.send(text)
        self.browser.click(".user [aria-label^=Edit]", 1)
        self.browser.run("document.querySelector('.editor textarea').select()")
        self.browser.type("Say four.")
        self.browser.key("Enter")
        self.browser.wait(f"{IDLE} && !document.querySelector('.editor')", 60)
        self.assertEqual(self.texts(".bubble"), ["Say one.", "Say four."])
        self.assertEqual(len(self.texts(".answer")), 2)
        if self.mock:
            sent = [message["content"] for message in self.mock.requests[-1]["messages"]]
            self.assertEqual(sent, ["Say one.", "Echo of Say one., turn 1.", "Say four."])

    def test_escape_leaves_an_edit_and_changes_nothing(self):
        self.send("Say one.")
        self.browser.click(".user [aria-label^=Edit]")
        self.browser.type("x")
        self.browser.key("Escape")
        self.assertEqual(self.texts(".bubble"), ["Say one."])
        self.assertEqual(len(self.texts(".answer")), 1)

    def test_retry_answers_again(self):
        for text in ("Say one.", "Say two."):
            self.send(text)
        self.browser.click("[aria-label='Answer again']", 0)
        self.browser.wait(f"{IDLE} && document.querySelectorAll('.answer').length == 1", 60)
        self.assertEqual(self.texts(".bubble"), ["Say one."])
        if self.mock:
            self.assertEqual(len(self.mock.requests), 3)
            self.assertEqual(len(self.mock.requests[-1]["messages"]), 1)

    def test_history_survives_a_reload_and_a_delete_can_be_undone(self):
        self.send("Say one.")
        self.browser.click("#new")
        self.send("Say two.")
        answer = self.answer()
        self.browser.reload()
        self.browser.wait("document.getElementById('model').value")
        self.assertEqual(self.texts("#chats .open"), ["Say two.", "Say one."])
        self.browser.click("#chats .open", 0)
        self.assertEqual((self.texts(".bubble"), self.answer()), (["Say two."], answer))
        self.browser.click("#chats [aria-label^=Delete]", 0)
        self.browser.wait("document.querySelectorAll('#chats .open').length == 1")
        self.browser.click("#toast button")
        self.browser.wait("document.querySelectorAll('#chats .open').length == 2")
        self.assertEqual(self.answer(), answer)

    def test_phone_has_no_sideways_scroll_and_a_drawer(self):
        self.browser.resize(360, 700, phone=True)
        self.browser.reload()
        self.browser.wait("document.getElementById('model').value")
        self.browser.run("document.getElementById('prompt').focus()")
        self.browser.type("How does this work? Show code, a table and " + "averylongword" * 30)
        self.browser.click("#send")
        self.browser.wait(IDLE, 120)
        for selector in ("document.documentElement", "document.getElementById('log')"):
            self.assertTrue(self.browser.run(f"{selector}.scrollWidth <= {selector}.clientWidth"))
        self.assertFalse(self.browser.run("document.getElementById('side').checkVisibility()"))
        self.browser.click("#menu")
        self.assertTrue(self.browser.run("document.getElementById('side').checkVisibility()"))
        self.assertTrue(self.browser.run("innerWidth >= document.documentElement.scrollWidth"))
        # Nothing of the conversation lies over the list or can be reached behind it.
        self.assertTrue(self.browser.run("side.contains(document.activeElement)"))
        self.assertTrue(self.browser.run("document.querySelector('main').inert"))
        self.browser.run("document.querySelector('main').inert = false")  # Hits skip what is inert.
        self.assertTrue(self.browser.run("side.contains(document.elementFromPoint(60, 640))"))
        self.browser.click("#chats .open")
        self.assertFalse(self.browser.run("document.getElementById('side').checkVisibility()"))

    def test_themes(self):
        page = "getComputedStyle(document.body).backgroundColor"
        light = self.browser.run(page)
        self.browser.prefer("dark")
        dark = self.browser.run(page)
        self.assertNotEqual(light, dark)
        self.browser.click("#theme")
        self.assertEqual(self.browser.run(page), light)
        self.browser.reload()
        self.assertEqual(self.browser.run(page), light)
        self.browser.click("#theme")
        self.assertEqual(self.browser.run(page), dark)

    def test_colours_have_contrast(self):
        """WCAG's 4.5 for each colour of text on each background that it stands on."""
        script = """(() => { const probe = document.body.appendChild(document.createElement('i'));
          const light = name => { probe.style.color = `var(${name})`;
            const part = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(c =>
              (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
            return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2]; };
          const pairs = [['--text', '--page'], ['--text', '--raised'], ['--text', '--side'],
            ['--text', '--hover'], ['--muted', '--page'], ['--muted', '--side'],
            ['--muted', '--raised'], ['--muted', '--hover'], ['--accent', '--page'],
            ['--on-accent', '--accent'], ['--danger', '--danger-page'],
            ['--text', '--danger-page'], ['--danger', '--page'], ['--code-word', '--page'],
            ['--code-string', '--page'], ['--code-number', '--page'], ['--code-name', '--page']];
          return pairs.map(([a, b]) => [a, b, [light(a), light(b)].sort((x, y) => y - x)])
            .map(([a, b, [high, low]]) => [a, b, (high + 0.05) / (low + 0.05)])
            .filter(([, , ratio]) => !(ratio >= 4.5)); })()"""
        for scheme in ("light", "dark"):
            self.browser.prefer(scheme)
            self.assertEqual(self.browser.run(script), [], scheme)

    def test_shift_enter_starts_a_line(self):
        self.browser.run("document.getElementById('prompt').focus()")
        self.browser.type("a")
        self.browser.key("Enter", shift=True)
        self.browser.type("b")
        self.assertEqual(self.browser.run("document.getElementById('prompt').value"), "a\nb")
        self.assertEqual(self.texts(".user"), [])

    # What only the mock server does.

    @mock_only
    def test_stream_cut_anywhere(self):
        self.send("odd")
        self.assertEqual(self.answer(), "Gr\u00fc\u00dfe|an|\U0001f98a|und|\u65e5\u672c,|3|<|4.|")

    @mock_only
    def test_hostile_answer_stays_text(self):
        self.send("hostile")
        self.assertIsNone(self.browser.run("window.hacked ?? null"))
        self.assertEqual(self.browser.run(
            "document.querySelectorAll('#messages img, #messages script, #messages i').length"), 0)
        self.assertIn('<img src=x onerror="window.hacked=1">', self.answer())
        self.assertIn("<script>window.hacked=4</script>", self.texts(".answer pre")[0])
        links = self.browser.run("[...document.querySelectorAll('#messages a')]"
                                 ".map(a => [a.href, a.rel])")
        self.assertEqual(links, [["https://example.com/?a=(1)", "noopener noreferrer"]])
        self.assertIn("[a](javascript:", self.answer())
        self.send("echo " + HOSTILE)
        self.browser.reload()
        self.browser.click("#chats .open")
        self.assertIsNone(self.browser.run("window.hacked ?? null"))

    @mock_only
    def test_reasoning_is_folded_and_not_sent_back(self):
        self.send("reason")
        self.assertEqual(self.texts(".reasoning div"), ["First I think about <it>. Then more."])
        self.assertFalse(self.browser.run("document.querySelector('.reasoning').open"))
        self.assertRegex(self.texts(".reasoning summary")[0], r"Thought for [\d.]+ s")
        self.assertEqual(self.answer(), "The answer is 42.")
        self.send("echo")
        self.assertNotIn("think", json.dumps(self.mock.requests[-1]))

    @mock_only
    def test_tool_calls_are_text(self):
        self.send("tools")
        self.assertEqual(self.texts(".answer pre"), ['weather({"city":"Oslo"})'])

    @mock_only
    def test_code_has_colours(self):
        self.send("code please")
        spans = self.browser.run("""[...document.querySelectorAll('.code code')].map(code =>
            [...code.querySelectorAll('b, i, u, s, q')].map(node =>
                node.tagName + ' ' + node.textContent))""")
        self.assertEqual(spans, [
            ["B def", "Q f", 'I # "no string"', 'U """Two', 'U     lines"""', "U 'a#b'",
             "Q g", "S 1", "B True", "B return", "S 0x1F", "B if", "B else", "Q g"],
            ["B SELECT", "B FROM", "I -- all"],
            ["I /* one", "I    two */", "B int", "S 3", 'I // "x"'],
            ["B <a", "Q href", 'U "x"', "I <!-- <b> -->", "B </a"],
            []])
        self.assertEqual("".join(f"```{header}\n{code}```\n\n" for header, code in zip(
            ["python", "sql", "c++", "html", ""], self.texts(".code code"))).strip(), CODE.strip())

    @mock_only
    def test_a_model_without_a_template_goes_on_with_the_text(self):
        self.mock.template = ""
        self.browser.reload()
        self.browser.wait("state.completes")
        self.assertIn("begin", self.texts("#empty h1")[0])
        self.send("There was")
        self.assertEqual(self.answer(), "a river and a town.")
        self.assertIn("Cut at the limit", self.texts(".stats")[-1])
        self.send(" Then")
        self.assertEqual([request["prompt"] for request in self.mock.requests],
                         ["There was", "There was a river and a town. Then"])
        self.assertEqual(self.mock.requests[0]["max_tokens"], 256)
        self.assertNotIn("messages", self.mock.requests[0])

    @mock_only
    def test_busy_server_says_when_to_try_again(self):
        self.expected = ["status of 429", "status of 503"]
        for status in ("429", "503"):
            self.send(f"busy {status}")
            self.assertIn("The server is busy", self.texts(".notice")[-1])
            self.assertIn("Try again in 1 s", self.texts(".notice")[-1])
            self.browser.wait("!document.querySelector('.notice button').disabled", 4)
            self.browser.click(".notice button")
            self.browser.wait(f"{IDLE} && !document.querySelector('.notice')")
            self.assertIn("Echo of busy", self.answer())

    @mock_only
    def test_key_is_asked_for_and_the_answer_goes_on(self):
        self.expected = ["status of 401"]
        self.mock.key = "s3cret"
        self.send("Say one.")
        self.assertTrue(self.browser.run("document.getElementById('key-dialog').open"))
        self.browser.type("s3cret")
        self.browser.key("Enter")
        self.browser.wait(f"{IDLE} && document.querySelector('.answer > .text').textContent")
        self.assertEqual(self.answer(), "Echo of Say one., turn 1.")
        self.assertEqual(self.browser.run("sessionStorage.getItem('nibble.key')"), "s3cret")
        self.assertNotIn("s3cret", self.browser.run("JSON.stringify(localStorage)"))

    @mock_only
    def test_key_is_asked_for_when_the_page_opens(self):
        self.expected = ["status of 401"]
        self.mock.key = "s3cret"
        self.browser.reload()
        self.browser.wait("document.getElementById('key-dialog').open")
        self.browser.type("wrong")
        self.browser.key("Enter")
        self.browser.wait("document.getElementById('key-dialog').open")
        self.browser.run("document.getElementById('key').select()")
        self.browser.type("s3cret")
        self.browser.key("Enter")
        self.browser.wait("document.getElementById('model').value == 'smollm2-1.7b-w4a8'")
        self.assertFalse(self.browser.run("document.getElementById('key-dialog').open"))

    @mock_only
    def test_lost_connections(self):
        self.expected = ["ERR_CONNECTION_REFUSED"]
        self.send("cut")
        self.assertIn("Half an ans", self.answer())
        self.assertIn("connection to the server was lost", self.texts(".notice")[-1])
        self.mock.close()
        self.send("Say one.")
        self.assertIn("connection to the server was lost", self.texts(".notice")[-1])
        self.assertEqual(self.texts("#link"), ["No connection"])
        self.mock = None

    @mock_only
    def test_errors_in_the_stream_and_refusals(self):
        self.expected = ["status of 400"]
        self.send("event")
        self.assertIn("The cache is full.", self.texts(".notice")[-1])
        self.send("refuse")
        self.assertIn("longer than the context", self.texts(".notice")[-1])
        self.send("echo again")
        # A failed turn leaves no two messages of one role behind each other.
        roles = [message["role"] for message in self.mock.requests[-1]["messages"]]
        self.assertEqual(roles, ["user", "assistant", "user"])

    @mock_only
    def test_settings_are_sent_and_kept(self):
        self.browser.wait("document.querySelector('[data-setting=top_p]').placeholder === '0.95'")
        self.browser.click("#settings")
        for name, value in (("system", "Be brief."), ("temperature", "0.5"), ("top_p", "0.9"),
                            ("max_tokens", "77")):
            self.browser.run(f"document.querySelector('[data-setting={name}]').focus()")
            self.browser.type(value)
        self.browser.click("#settings-done")
        self.browser.reload()
        self.send("Say one.")
        request = self.mock.requests[-1]
        self.assertEqual(request["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertEqual([request[name] for name in ("temperature", "top_p", "max_tokens")],
                         [0.5, 0.9, 77])

    @mock_only
    def test_answers_run_beside_each_other(self):
        self.send("slow one", wait=False)
        self.browser.wait("document.querySelector('.answer > .text')?.textContent")
        self.browser.click("#new")
        self.send("Say two.", wait=False)
        self.browser.wait("state.running.size == 1")
        self.assertIn("Echo of Say two.", self.answer())
        self.browser.click("#chats .open[title='slow one']")
        self.browser.wait("document.querySelector('.answer > .text').textContent.includes('word9')")
        self.browser.reload()  # What was there of an answer survives.
        self.browser.click("#chats .open[title='slow one']")
        self.assertEqual(self.texts(".notice"), [])
        self.assertIn("word9", self.answer())

    @mock_only
    def test_metrics_are_shown_and_not_asked_for_often(self):
        self.browser.wait("document.getElementById('cache-part').textContent == '13 %'")
        before = len(self.mock.metrics_times)
        self.send("slow", wait=False)
        time.sleep(5)
        self.browser.key("Escape")
        times = self.mock.metrics_times[before - 1:]
        self.assertIn(len(times), (3, 4))
        self.assertGreater(min(b - a for a, b in zip(times, times[1:])), 1.9)

    @mock_only
    def test_long_answer_is_fast(self):
        start = time.monotonic()
        self.send("long")
        self.assertTrue(self.answer().endswith("THE END"))
        seconds = time.monotonic() - start
        self.assertEqual(len(self.texts(".answer strong")), 250)
        self.assertEqual(self.browser.run("document.querySelectorAll('.answer li').length"), 300)
        self.assertLess(seconds, 30)
        print(f"5000-token answer: {seconds:.1f} s", file=sys.stderr)

    @mock_only
    def test_markdown_is_linear_in_time(self):
        """Four times the text may take at most about four times as long, whatever it is made of."""
        units = ["**a ", "*a _b ", "[a](http://", "[", "` `` ", "a*b**c_", "\\`` ", "> ", "- ",
                 "| a ", "a\n", "# ", "1. a\n", "  - a\n", "```\na\n```\n", "*", "http://a.b/(",
                 "~~a", "-", "![](https://x.y) ", "***a** b* ", "&lt;<b>"]
        script = """(unit => { const time = size => { const text = unit.repeat(size / unit.length);
            const markdown = new Markdown(document.createElement('div')), start = performance.now();
            for (let at = 0; at < text.length; at += 50) markdown.push(text.slice(at, at + 50));
            markdown.end(); return performance.now() - start; };
          time(20000); return [time(40000), time(160000)]; })"""
        for unit in units:
            small, large = self.browser.run(f"{script}({json.dumps(unit)})")
            self.assertLess(large, 8 * small + 200, unit)

    @mock_only
    def test_markdown_in_any_cuts_is_the_same(self):
        texts = ["# T\n\na **b** *c* ~~d~~ `e` [f](http://g.h/)\n\n- i\n  - j\n- k\n\n1. l\n2. m\n",
                 "| a | b |\n| --- | --- |\n| 1 | `2` |\n\n> q\n> r\n\n"
                 "---\n\n```c\nx\n\n  y\n```\nend",
                 "3. a\n\n   more\n\n   ```\n   code\n   ```\n4. b\ntext\n\n**unfinished `code"]
        script = """((text, size) => { const root = document.createElement('div');
            const markdown = new Markdown(root);
            for (let at = 0; at < text.length; at += size) markdown.push(text.slice(at, at + size));
            markdown.end(); root.querySelectorAll('*').forEach(node => node.normalize());
            return root.innerHTML; })"""
        for text in texts:
            whole = self.browser.run(f"{script}({json.dumps(text)}, 100000)")
            for size in range(1, 8):
                self.assertEqual(self.browser.run(f"{script}({json.dumps(text)}, {size})"), whole)
        self.assertIn('<ol start="3"><li><p>a</p><p>more</p><div class="code">', whole)
        self.assertIn('</div></li><li><p>b\ntext</p></li></ol><p>', whole)

    @mock_only
    def test_scroll_stays_where_the_reader_put_it(self):
        self.browser.resize(1200, 400)
        at_end = "log.scrollHeight - log.scrollTop - log.clientHeight < 48"
        self.send("How", wait=False)
        self.browser.wait("log.scrollHeight > log.clientHeight + 200")
        self.assertTrue(self.browser.run(at_end))
        self.browser.run("log.scrollTop = 50")
        time.sleep(0.5)
        self.assertEqual(self.browser.run("log.scrollTop"), 50)
        self.browser.click("#latest")
        self.assertTrue(self.browser.run(at_end))
        self.browser.wait(IDLE)
        self.assertTrue(self.browser.run(at_end))

    @mock_only
    def test_pictures(self):
        if not OPTIONS.screenshots:
            self.skipTest("no --screenshots")
        take_pictures(self)


def take_pictures(test):
    browser, folder = test.browser, pathlib.Path(OPTIONS.screenshots)
    folder.mkdir(parents=True, exist_ok=True)
    test.expected = ["status of 429"]

    def shoot(name):
        time.sleep(0.4)
        browser.screenshot(str(folder / f"{name}.png"))

    shoot("empty_light")
    for text in ("Plan a week of simple dinners", "Why is the sky blue in one paragraph?"):
        test.send(text)
        browser.click("#new")
    test.send("How can a model run with four bits per weight?")
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        browser.run("log.scrollTop = 0, 0")
        shoot(f"desktop_{scheme}_top")
        browser.run("log.scrollTop = 1e6, 0")
        shoot(f"desktop_{scheme}_end")
    browser.click("#settings")
    shoot("settings_dark")
    browser.key("Escape")
    browser.click("#new")
    test.send("tools")
    test.send("busy 429")
    browser.wait("!document.querySelector('.notice button').disabled", 4)
    browser.click("#new")
    test.send("reason about the answer")
    test.send("cut")
    browser.click(".reasoning summary")
    browser.click(".user [aria-label^=Edit]", 0)
    browser.prefer("light")
    shoot("states_light")
    browser.run("askKey()")
    shoot("key_light")
    browser.key("Escape")
    browser.resize(390, 844, phone=True)
    browser.click("#menu")
    browser.run("setDrawer(true)")
    shoot("phone_drawer")
    browser.click("#chats .open[title^='How can']")
    browser.run("log.scrollTop = 0, 0")
    shoot("phone_light")
    browser.prefer("dark")
    browser.run("log.scrollTop = 1e6, 0")
    shoot("phone_dark")
    browser.click("#quick-new")
    shoot("phone_empty_dark")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", help="a server that runs, instead of the mock server")
    parser.add_argument("--screenshots", help="a folder for pictures of the page")
    _, rest = parser.parse_known_args(namespace=OPTIONS)
    if not find_chromium():
        print("skipped: needs Chromium (on the PATH, or its path in CHROMIUM)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
