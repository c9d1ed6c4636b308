//! A headless Chromium, told what to do by its debugging protocol: JSON over two pipes, each message
//! ended by a zero byte.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;

use base64::Engine;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

/// A browser with one page.
pub struct Browser {
    commands: pipe::Sender,
    events: BufReader<pipe::Receiver>,
    session: Option<String>,
    last: u64,
    /// What the page complained about: errors of its script, refusals of its policy.
    pub complaints: Vec<String>,
    _child: Child,
    _folder: TempDir,
}

impl Browser {
    /// Starts one. `cargo xtask install` installs it.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [commands, events] = ["commands", "events"].map(|name| folder.path().join(name));
        for path in [&commands, &events] {
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
        }
        // Open before the browser is: a pipe is opened for writing once there is a reader. Both
        // ways, so that neither end waits for the other here.
        let receiver = pipe::OpenOptions::new().read_write(true).open_receiver(&events).unwrap();
        let sender = pipe::OpenOptions::new().read_write(true).open_sender(&commands).unwrap();
        let child = Command::new("sh")
            .args(["-c", "exec chromium \"$@\" 3<\"$COMMANDS\" 4>\"$EVENTS\"", "sh"])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--remote-debugging-pipe", "about:blank"])
            .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
            .env("COMMANDS", &commands)
            .env("EVENTS", &events)
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut browser = Self {
            commands: sender,
            events: BufReader::new(receiver),
            session: None,
            last: 0,
            complaints: Vec::new(),
            _child: child,
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach).await;
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({})).await;
        }
        browser
    }

    /// Opens a URL.
    pub async fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url})).await;
        self.sees("document.readyState === 'complete'").await;
    }

    /// What an expression comes to, once its promise is kept.
    pub async fn evaluate(&mut self, expression: &str) -> Value {
        let ask = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", ask).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true: it is looked at with every frame.
    pub async fn sees(&mut self, expression: &str) {
        let wait = format!(
            "new Promise((done) => {{ const look = () => ({expression}) ? done(true) : \
             setTimeout(look, 20); look(); }})"
        );
        let limit = std::time::Duration::from_secs(60);
        if tokio::time::timeout(limit, self.evaluate(&wait)).await.is_err() {
            panic!("{expression} is not seen; the page complained: {:?}", self.complaints);
        }
    }

    /// Presses a key as a keyboard does.
    pub async fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Tab" => (9, ""),
            "Escape" => (27, ""),
            _ => panic!("{key} is not known here"),
        };
        for kind in ["keyDown", "keyUp"] {
            let press = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text,
            });
            self.call("Input.dispatchKeyEvent", press).await;
        }
    }

    /// Types text where the focus is.
    pub async fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Makes the window so wide, in light or dark.
    pub async fn set_appearance(&mut self, width: u32, scheme: &str) {
        let size = json!({
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// Writes what is seen to a file.
    pub async fn picture(&mut self, file: &Path) {
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"})).await;
        let data = answer["data"].as_str().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let id = self.last;
        let mut message =
            HashMap::from([("id", json!(id)), ("method", json!(method)), ("params", params)]);
        if let Some(session) = &self.session {
            message.insert("sessionId", json!(session));
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.commands.write_all(&bytes).await.unwrap();
        loop {
            let mut bytes = Vec::new();
            self.events.read_until(0, &mut bytes).await.unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser ended");
            let event: Value = serde_json::from_slice(&bytes).unwrap();
            match event["method"].as_str() {
                Some("Runtime.exceptionThrown" | "Log.entryAdded") => {
                    self.complaints.push(event["params"].to_string());
                }
                _ if event["id"] == id => {
                    assert!(event["error"].is_null(), "{method}: {event}");
                    return event["result"].clone();
                }
                _ => {}
            }
        }
    }
}
