"""The page in a real browser: Chromium without a window, its microphone fed from a WAV file."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from websockets.sync.client import connect

import sound

URL, KEY = sys.argv[1], sys.argv[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60


class Browser:
    def __init__(self, folder, microphone):
        command = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--mute-audio",
            "--autoplay-policy=no-user-gesture-required", "--use-fake-ui-for-media-stream",
            "--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={microphone}",
            "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={folder}/profile", "about:blank",
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            found = re.search(r"DevTools listening on (ws://\S+)", line)
            if found:
                break
        else:
            raise AssertionError("the browser did not start")
        # What it says later is of no interest, but must be taken from it.
        self.socket = connect(found.group(1), max_size=64 << 20).__enter__()
        self.number = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if hasattr(self, "session"):
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            reply = json.loads(self.socket.recv(timeout=PATIENCE))
            if reply.get("id") == self.number:
                assert "error" not in reply, reply
                return reply["result"]

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, script):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"in vain: {script}: {self.run('document.body.innerText')}")

    def close(self):
        self.process.terminate()
        self.process.wait()


def main():
    with tempfile.TemporaryDirectory() as folder:
        microphone = os.path.join(folder, "microphone.wav")
        with open(microphone, "wb") as file:
            file.write(sound.wav("####......", 48_000))
        browser = Browser(folder, microphone)
        try:
            text = "document.getElementById('{}').textContent".format
            browser.call("Page.enable")
            browser.call("Page.navigate", url=f"{URL}/?api_key={KEY}")
            browser.until(f"document.readyState == 'complete' && {text('status')} == 'ready'")
            assert browser.run("document.getElementById('voice').value") == "voice"
            assert browser.run("document.getElementById('hear-model').value") == "counter"

            browser.run("document.getElementById('speak').click()")
            size = browser.until("!document.getElementById('save').hidden && document.getElementById('save').dataset.bytes")
            assert int(size) > 44 + 2000, size
            assert re.fullmatch(r"\d+ ms", browser.run(text("first-audio"))), browser.run(text("first-audio"))
            assert float(browser.run(text("factor"))) > 0

            browser.run("document.getElementById('mic').click()")
            heard = browser.until("document.querySelector('#transcript p:not(.now)')?.textContent")
            assert re.match(r"w\d+( w\d+)*$", heard), heard
            assert re.fullmatch(r"-?\d+ ms", browser.run(text("lag"))), browser.run(text("lag"))
            browser.run("document.getElementById('mic').click()")
            browser.until(f"{text('mic')} == 'Listen'")

            before = browser.run("getComputedStyle(document.body).backgroundColor")
            browser.run("document.getElementById('theme').click()")
            assert browser.run("getComputedStyle(document.body).backgroundColor") != before
        finally:
            browser.close()


if CHROMIUM is None:
    print("no Chromium here: the page was not tried in a browser")
else:
    main()
    print("browser ok")
