package conformance

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const (
	newUser     = "franz"
	newPassword = "franz-secret"
	newTopic    = "of-franz"
)

// TestAdministration administers users, ACLs, quotas and delegation tokens with franz-go's kadm. ADMIN_SEEDS names an
// open listener whose clients are super users, LOGIN_SEEDS one with SASL_PLAINTEXT.
func TestAdministration(t *testing.T) {
	adminSeeds, loginSeeds := os.Getenv("ADMIN_SEEDS"), os.Getenv("LOGIN_SEEDS")
	if adminSeeds == "" || loginSeeds == "" {
		t.Skip("ADMIN_SEEDS or LOGIN_SEEDS is not set")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	admin, err := kadm.NewOptClient(kgo.SeedBrokers(adminSeeds))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, newTopic); err != nil {
		t.Fatal(err)
	}
	users, err := admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{
		{User: newUser, Mechanism: kadm.ScramSha256, Iterations: 4096, Password: newPassword},
	})
	if err != nil || users.Error() != nil {
		t.Fatal(err, users.Error())
	}
	described, err := admin.DescribeUserSCRAMs(ctx, newUser)
	if err != nil || !described.Ok() || described[newUser].CredInfos[0].Iterations != 4096 {
		t.Fatal(err, described)
	}

	login := func(auth scram.Auth) *kgo.Client {
		client, err := kgo.NewClient(
			kgo.SeedBrokers(loginSeeds),
			kgo.SASL(auth.AsSha256Mechanism()),
			kgo.DisableIdempotentWrite(),
			kgo.RecordDeliveryTimeout(10*time.Second),
		)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	user := login(scram.Auth{User: newUser, Pass: newPassword})
	defer user.Close()
	produce := func(client *kgo.Client) error {
		return client.ProduceSync(ctx, &kgo.Record{Topic: newTopic, Value: []byte("x")}).FirstErr()
	}

	if err := produce(user); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("without an ACL: %v", err)
	}
	acls := func() *kadm.ACLBuilder {
		return kadm.NewACLs().Topics(newTopic).ResourcePatternType(kadm.ACLPatternLiteral).
			Operations(kadm.OpWrite).Allow("User:" + newUser).AllowHosts()
	}
	created, err := admin.CreateACLs(ctx, acls())
	if err != nil || len(created) != 1 || created[0].Err != nil {
		t.Fatal(err, created)
	}
	if err := produce(user); err != nil {
		t.Errorf("with an ACL: %v", err)
	}
	found, err := admin.DescribeACLs(ctx, acls())
	if err != nil || len(found) != 1 || len(found[0].Described) != 1 {
		t.Error(err, found)
	}

	tokens := kadm.NewClient(user)
	token, err := tokens.CreateDelegationToken(ctx, kadm.CreateDelegationToken{MaxLifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	bearer := login(scram.Auth{User: token.TokenID, Pass: base64.StdEncoding.EncodeToString(token.HMAC), IsToken: true})
	defer bearer.Close()
	if err := produce(bearer); err != nil {
		t.Errorf("with a delegation token: %v", err)
	}
	seen, err := tokens.DescribeDelegationTokens(ctx)
	if err != nil || len(seen) != 1 || !bytes.Equal(seen[0].HMAC, token.HMAC) {
		t.Error(err, seen)
	}
	if _, err := tokens.ExpireDelegationToken(ctx, token.HMAC, -1); err != nil {
		t.Error(err)
	}

	name := newUser
	entity := kadm.ClientQuotaEntity{{Type: "user", Name: &name}}
	altered, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{
		{Entity: entity, Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: 1 << 20}}},
	})
	if err != nil || len(altered) != 1 || altered[0].Err != nil {
		t.Fatal(err, altered)
	}
	quotas, err := admin.DescribeClientQuotas(ctx, true, []kadm.DescribeClientQuotaComponent{
		{Type: "user", MatchName: &name},
	})
	if err != nil || len(quotas) != 1 || quotas[0].Values[0].Value != 1<<20 {
		t.Error(err, quotas)
	}

	deleted, err := admin.DeleteACLs(ctx, acls())
	if err != nil || len(deleted) != 1 || len(deleted[0].Deleted) != 1 {
		t.Fatal(err, deleted)
	}
	if err := produce(user); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("after the ACL: %v", err)
	}
}
