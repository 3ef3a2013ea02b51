/** A kubeconfig with these contexts, of which the first one is the current one; nobody answers behind it. */
export function kubeconfig(...contexts: string[]): string {
  const rows = contexts.map(
    name => `- {name: ${name}, context: {cluster: far, user: me}}`
  );
  return `apiVersion: v1
kind: Config
clusters: [{name: far, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: me, user: {token: none}}]
contexts:
${rows.join('\n')}
current-context: ${contexts[0]}
`;
}
