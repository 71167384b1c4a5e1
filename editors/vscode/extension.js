// Starts `treadle lsp` and connects it to VS Code.
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

/** The command of the settings, with the folder of the workspace filled in. */
function serverCommand() {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath ?? "";
  const words = vscode.workspace.getConfiguration("afl").get("server.command", ["treadle", "lsp"]);
  return words.map((word) => word.replaceAll("${workspaceFolder}", folder));
}

async function start() {
  const [command, ...args] = serverCommand();
  const watcher = vscode.workspace.createFileSystemWatcher("**/*.afl");
  client = new LanguageClient(
    "afl",
    "AFL",
    { command, args },
    {
      documentSelector: [{ language: "afl" }],
      synchronize: { fileEvents: watcher },
    },
  );
  try {
    await client.start();
  } catch (error) {
    const fix = "pip install 'treadle[lsp]', or set afl.server.command.";
    vscode.window.showErrorMessage(`The language server of AFL did not start (${command}): ${error}. Remedy: ${fix}`);
  }
}

async function stop() {
  const last = client;
  client = undefined;
  await last?.stop().catch(() => undefined);
}

exports.activate = async (context) => {
  const restart = async () => {
    await stop();
    await start();
  };
  context.subscriptions.push(
    vscode.commands.registerCommand("afl.restart", restart),
    vscode.workspace.onDidChangeConfiguration((event) => event.affectsConfiguration("afl.server") && restart()),
  );
  await start();
};

exports.deactivate = stop;
