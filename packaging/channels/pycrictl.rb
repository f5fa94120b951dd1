class Pycrictl < Formula
  desc "Command-line for the container runtimes of Kubernetes nodes"
  homepage "@HOMEPAGE@"
  version "@VERSION@"
  license "Apache-2.0"

  depends_on :linux

@IF pycrictl-@VERSION@-linux-x86_64.tar.xz@
  on_intel do
    url "@URL@/pycrictl-@VERSION@-linux-x86_64.tar.xz"
    sha256 "@SHA256 pycrictl-@VERSION@-linux-x86_64.tar.xz@"
  end
@END@
@IF pycrictl-@VERSION@-linux-aarch64.tar.xz@
  on_arm do
    url "@URL@/pycrictl-@VERSION@-linux-aarch64.tar.xz"
    sha256 "@SHA256 pycrictl-@VERSION@-linux-aarch64.tar.xz@"
  end
@END@

  def install
    libexec.install Dir["*"]
    bin.install_symlink libexec/"pycrictl"
    man1.install_symlink Dir[libexec/"share/man/man1/*"]
    man5.install_symlink Dir[libexec/"share/man/man5/*"]
    man7.install_symlink Dir[libexec/"share/man/man7/*"]
    bash_completion.install_symlink libexec/"share/bash-completion/completions/pycrictl"
    zsh_completion.install_symlink libexec/"share/zsh/site-functions/_pycrictl"
    fish_completion.install_symlink libexec/"share/fish/vendor_completions.d/pycrictl.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/pycrictl --version")
  end
end
